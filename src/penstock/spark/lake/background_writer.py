"""Tables that are written without Spark: the next records of each topic, to files, and a commit, again and again.

The same files, tables and commits as those of an archive that Spark writes, so either can continue the other's tables.
All that must survive is in the table: a process that is killed at any step is followed by one that goes on at the
table's offsets.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from penstock.client.wire import Cluster, Topic
from penstock.errors import PenstockError
from penstock.spark.lake.folder import Lake, TopicFacts
from penstock.spark.lake.maintenance import DEFAULT_COMPACTION, care_for
from penstock.spark.lake.parquet_files import RowsToFiles
from penstock.spark.lake.record_columns import RECORD_SCHEMA
from penstock.spark.lake.topic_rows import gather
from penstock.spark.lake.topic_table import TopicTable
from penstock.spark.problems import AnotherWriter, ArchiveError

log = logging.getLogger("penstock.lake")

CARE_COMMITS: Final = 20
"""Commits of a table after which its small files are merged, as in a run of Spark."""


@dataclass(slots=True)
class _Table:
    table: TopicTable
    commits: int = 0


class BackgroundWriter:
    def __init__(self, cluster: Cluster, lake: Lake, *, batch_bytes: int) -> None:
        self._cluster = cluster
        self._lake = lake
        self._batch_bytes = batch_bytes
        self._tables: dict[str, _Table] = {}
        self._told: dict[str, str] = {}

    def write_all(self, topics: Collection[str]) -> None:
        """Writes what these topics have now, a commit of each in turn. So neither a topic that fails holds up the
        others (the next call tries it again), nor one that grows faster than it can be written."""
        for name in [known for known in self._tables if known not in topics]:
            del self._tables[name]
        waiting = sorted(topics)
        while waiting:
            waiting = [name for name in waiting if self._write_once(name)]

    def _write_once(self, name: str) -> bool:
        """Whether the topic has more."""
        try:
            has_more = self.write(name)
        except (PenstockError, OSError) as problem:
            self._tables.pop(name, None)
            self._tell(name, problem)
            return False
        self._told.pop(name, None)
        return has_more

    def write(self, name: str) -> bool:
        """One commit of one topic, if it has new records. Returns whether it has more."""
        topic = self._cluster.topics([name]).get(name)
        if topic is None:
            self._tables.pop(name, None)
            return False
        known = self._table(topic)
        found = gather(
            self._cluster, name, topic.partitions, known.table.positions, most_bytes=self._batch_bytes
        )
        if not found.positions or not self._is_there(topic):
            return False
        write = RowsToFiles(storage=self._lake.storage, schema=RECORD_SCHEMA, compression="zstd")
        files = list(write.files(iter(found.rows.combine_chunks().to_batches())))
        known.table.append(
            files, positions=found.positions, partitions=len(topic.partitions), note="background"
        )
        known.commits += 1
        if known.commits % CARE_COMMITS == 0:
            care_for(known.table, DEFAULT_COMPACTION)
        return found.has_more

    def _is_there(self, topic: Topic) -> bool:
        """Asked when the rows have been read: those of a topic that was created again must not be taken for its
        records."""
        now = self._cluster.topics([topic.name]).get(topic.name)
        return now is not None and now.topic_id == topic.topic_id

    def _table(self, topic: Topic) -> _Table:
        known = self._tables.get(topic.name)
        if known is None:
            facts = TopicFacts(topic_id=str(topic.topic_id), partitions=len(topic.partitions))
            table = self._lake.table(topic.name) or self._lake.create(
                topic.name, RECORD_SCHEMA, facts, positions={}, properties={}
            )
            known = self._tables[topic.name] = _Table(table)
        _check(known.table, topic)
        return known

    def _tell(self, name: str, problem: Exception) -> None:
        """Once, until it is another problem or none."""
        if self._told.get(name) != str(problem):
            self._told[name] = str(problem)
            level = logging.WARNING if isinstance(problem, AnotherWriter) else logging.ERROR
            log.log(level, "the table of %s is not written at present: %s", name, problem)


def _check(table: TopicTable, topic: Topic) -> None:
    if table.topic_id != str(topic.topic_id):
        raise ArchiveError(
            f"topic {topic.name} was deleted and created again since {table.folder} was begun, so its offsets mean "
            "other records: move the table away"
        )
    if missing := [name for name in RECORD_SCHEMA.names if name not in table.schema().names]:
        raise ArchiveError(
            f"{table.folder} has no column {', '.join(missing)}: a pipeline writes it in another form. Move it away, "
            "or set penstock.table=none"
        )
