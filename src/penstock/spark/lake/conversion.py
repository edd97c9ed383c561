"""An archive of the old format into Delta tables, in place: the same records, each once, and the same next offsets.

Every topic's files are written again, with the columns `topic` and `date` that the old ones lack, and one commit makes
them the table together with the offsets that they reach. When all topics have their table, the old log gets another
name, and from then on the tables are the archive. Then the old files are deleted. Each step can be repeated: a
conversion that was killed goes on with the next call.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import ConfigError
from penstock.spark.lake.folder import OLD_LOG, delta_format
from penstock.spark.lake.parquet_files import RowsToFiles
from penstock.spark.lake.record_columns import DATE, RECORD_SCHEMA, utc_dates
from penstock.spark.lake.storage import LocalStorage, local_folder, sync
from penstock.spark.problems import ArchiveError

if TYPE_CHECKING:
    from penstock.spark.lake.old_archive import OldFile, OldState

OLD_FOLDER: Final = "_penstock"
OLD_TOPIC: Final = "topic="
CONVERTED_LOG: Final = f"{OLD_FOLDER}/converted-log"
BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Converted:
    topics: tuple[str, ...]
    rows: int
    """The rows of the topics that this call has converted."""


def convert_archive(path: str) -> Converted:
    """Makes Delta tables of an archive of the old format. No run may be writing to it."""
    from penstock.spark.lake.old_archive import load_old_archive

    root = local_folder(path)
    log, done = os.path.join(root, OLD_LOG), os.path.join(root, CONVERTED_LOG)
    if not os.path.isdir(log) and not os.path.isdir(done):
        raise ConfigError("path", path, f"an archive of the old format, which has a folder {OLD_LOG}")
    topics: list[str] = []
    rows = 0
    if os.path.isdir(log):
        state = load_old_archive(root)
        topics = state.names()
        if OLD_FOLDER in topics:
            raise ArchiveError(f"{path} has a topic {OLD_FOLDER}, whose table would be where the old log is")
        rows = sum(_convert(root, topic, state) for topic in topics)
        os.rename(log, done)
        sync(os.path.join(root, OLD_FOLDER))
    _delete_old(root)
    return Converted(topics=tuple(topics), rows=rows)


def _convert(root: str, topic: str, state: "OldState") -> int:
    """Returns how many rows were converted."""
    storage = LocalStorage(root)
    tables, folder = delta_format(), storage.below(topic)
    facts = state.topics.get(topic)
    table = tables.open(folder) or tables.create(
        folder,
        RECORD_SCHEMA,
        topic_id=facts.topic_id if facts else "",
        partitions=state.partitions_of(topic),
        positions={},
    )
    if table.positions or not state.positions_of(topic):
        return 0  # an earlier call has committed it, or there is nothing
    files = state.files_of(topic)
    write = RowsToFiles(storage=storage, schema=RECORD_SCHEMA, compression="zstd")
    written = list(write.files(_rows(root, topic, files)))
    before, after = sum(file.rows for file in files), sum(file.rows for file in written)
    if before != after:
        raise ArchiveError(f"{topic}: {before} records came out as {after}: nothing was changed")
    table.append(written, positions=state.positions_of(topic), note="converted")
    return after


def _rows(root: str, topic: str, files: "list[OldFile]") -> Iterator[pa.RecordBatch]:
    for file in files:
        with pq.ParquetFile(os.path.join(root, file.path)) as opened:
            for batch in opened.iter_batches(batch_size=BATCH_ROWS):
                yield _whole(batch, topic)


def _whole(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """With the two columns that were in the path alone."""
    names = pa.array([topic], pa.string()).take(pa.array(np.zeros(batch.num_rows, np.int32)))
    return batch.append_column("topic", names).append_column(DATE, utc_dates(batch.column("timestamp")))


def _delete_old(root: str) -> None:
    """Deletes the old archive. Its log goes last: it says that there is something left to delete."""
    for name in sorted(os.listdir(root)):
        if name.startswith(OLD_TOPIC):
            shutil.rmtree(os.path.join(root, name))
    shutil.rmtree(os.path.join(root, OLD_FOLDER))
