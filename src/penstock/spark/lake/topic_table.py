"""The table of one topic: which files it has and how far it goes, and commits that change both in one step.

There are two formats, Delta (`delta_table.py`) and Iceberg (`iceberg_table.py`). In both, a commit carries the next
offset of each partition that it moves, besides the files. So *how far* and *which files* are one snapshot, and a batch
that runs again finds that its offsets are archived. Offsets and not Spark's batch numbers are kept, because they mean
the same to every query and checkpoint.

Of two writers that start at the same offsets, one commits. The other one learns of it before or at its commit.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Protocol

import pyarrow as pa

from penstock.spark.lake.parquet_files import WrittenFile
from penstock.spark.lake.storage import LakeStorage
from penstock.spark.problems import AnotherWriter, ArchiveError, first_line

TOPIC_ID: Final = "penstock.topicId"
"""A property of the table. A topic that was deleted and created again has another id."""

Positions = Mapping[int, int]
"""The next offset that is not archived, by partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """A file of a snapshot, with the bounds of what is in it. A bound that is None is unknown."""

    path: str
    """Absolute."""
    date: str
    size_bytes: int
    rows: int
    offsets: tuple[int, int] | None
    """The first and the last, over all partitions."""
    times: tuple[datetime, datetime] | None


class TopicTable(ABC):
    """A snapshot of the table, and commits on top of it."""

    format_name: ClassVar[str]
    has_dates_in_files: ClassVar[bool]
    """Whether every file has the column `date`. Otherwise it is in the file's path."""
    merges_files: ClassVar[bool]

    def __init__(self, storage: LakeStorage, *, partitions: int, positions: Positions) -> None:
        self.storage = storage
        self.partitions = partitions
        self.positions = dict(positions)

    @property
    def folder(self) -> str:
        return self.storage.url

    @property
    def is_archive(self) -> bool:
        """Whether a pipeline or a node has made it. Others may have tables in the same folder."""
        return TOPIC_ID in self.properties

    @property
    def topic_id(self) -> str:
        return self.properties.get(TOPIC_ID, "")

    def refresh(self) -> None:
        """Takes over what others have committed. AnotherWriter if they have moved the end of the archive."""
        partitions, positions = self._load()
        if positions != self.positions:
            raise overtaken(self.folder)
        self.partitions = partitions

    def append(
        self,
        files: Sequence[WrittenFile],
        *,
        positions: Positions | None = None,
        partitions: int = 0,
        note: str = "",
    ) -> None:
        """Commits the files and the offsets that they reach (or `positions`, where these are further), or raises
        AnotherWriter and nothing has happened."""
        self.refresh()
        moved = dict(positions or {})
        for file in files:
            _check_there(self.storage, file)
            for number, end in file.next_offsets().items():
                moved[number] = max(moved.get(number, 0), end)
        known = max([partitions, self.partitions, *(number + 1 for number in moved)])
        self._commit(files, moved, known, note)
        self.positions = {**self.positions, **moved}
        self.refresh()

    @property
    @abstractmethod
    def version(self) -> int:
        """Rises with each commit."""

    @property
    @abstractmethod
    def properties(self) -> Mapping[str, str]: ...

    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def files(self) -> list[TableFile]:
        """The files of the snapshot, in a fixed order."""

    @abstractmethod
    def add_columns(self, fields: Iterable[pa.Field]) -> None:
        """Adds columns to the table; in older files they are null."""

    @abstractmethod
    def set_properties(self, properties: Mapping[str, str]) -> None: ...

    @abstractmethod
    def merge(self, dates: Sequence[str], *, target_bytes: int) -> int:
        """Merges the small files of these dates. Returns how many files fewer there are. A run may write meanwhile:
        that the end of the archive has moved is for `append` to notice."""

    @abstractmethod
    def vacuum(self, retention_hours: int, *, dry_run: bool, leftovers: bool) -> list[str]:
        """Forgets snapshots older than this, and deletes files as far as the format's library can. `leftovers`: also
        files that were never committed. Returns the names of what is deleted, sorted. A run may write meanwhile."""

    @abstractmethod
    def _load(self) -> tuple[int, Positions]:
        """Loads the newest snapshot. Returns the number of partitions and the positions in it."""

    @abstractmethod
    def _commit(self, files: Sequence[WrittenFile], moved: Positions, partitions: int, note: str) -> None:
        """On top of the snapshot that was loaded last, or AnotherWriter if someone else has set positions since."""


class TableFormat(Protocol):
    """How the tables of an archive are found and made."""

    def open(self, storage: LakeStorage) -> TopicTable | None:
        """None if there is no table."""

    def create(
        self,
        storage: LakeStorage,
        schema: pa.Schema,
        *,
        topic_id: str,
        partitions: int,
        positions: Positions,
        properties: Mapping[str, str] | None = None,
    ) -> TopicTable:
        """`positions` says where partitions begin that do not at their first record: what is before is not wanted."""


def _check_there(storage: LakeStorage, file: WrittenFile) -> None:
    """ArchiveError if the file is gone: a `vacuum` with too short a time may have taken it for a leftover."""
    if storage.size_bytes(file.path) != file.size_bytes:
        raise ArchiveError(
            f"{file.path} of {storage.url} is gone before it was committed, and nothing was changed: run it again"
        )


def unreachable(storage: LakeStorage, problem: Exception) -> ArchiveError:
    """A commit may have been made all the same. The next run reads the table, and goes on where it ends."""
    return ArchiveError(f"{storage.url} cannot be reached: {first_line(problem)}")


def overtaken(folder: str, problem: Exception | None = None) -> AnotherWriter:
    why = f" ({first_line(problem)})" if problem else ""
    return AnotherWriter(
        f"another writer has written to {folder} meanwhile{why}. An archive has one writer at a time: stop one of "
        "them. Nothing of this run's last batch was kept, and nothing is lost"
    )
