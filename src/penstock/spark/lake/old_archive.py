"""Archives of the format before Delta tables, for the conversion: what the log of such an archive says.

    PATH/topic=T/date=D/NAME.parquet                        records of one topic and day, without these two columns
    PATH/_penstock/log/00000000000000000007.json            one change: files added and removed, or nothing
    PATH/_penstock/log/00000000000000000050.snapshot.json   all changes up to this one: readers start here

The numbers have no gaps. The archive consists of the files that the log names, and of no others.
"""

import os
from collections.abc import Iterable
from typing import Final, Self, TypeVar

import msgspec

from penstock.spark.lake.folder import OLD_LOG
from penstock.spark.problems import ArchiveError

VERSION: Final = 1
CHANGE: Final = ".json"
SNAPSHOT: Final = ".snapshot.json"


class OldRange(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one partition in a file. Offsets from first to last, both in it; there may be holes."""

    partition: int
    first: int
    last: int
    rows: int


class OldFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Relative to the archive: topic=T/date=D/NAME."""
    topic: str
    date: str
    size_bytes: int
    ranges: tuple[OldRange, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.ranges)


class OldTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: str
    partitions: int


class OldChange(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    sequence: int
    added: tuple[OldFile, ...] = ()
    removed: tuple[str, ...] = ()
    through: dict[str, dict[str, int]] = {}
    """The next offset that is not archived, for each partition that this change moved."""
    topics: dict[str, OldTopic] = {}


class OldState(msgspec.Struct, frozen=True, kw_only=True):
    """An archive after all changes up to `sequence`."""

    version: int = VERSION
    sequence: int = 0
    files: dict[str, OldFile] = {}
    through: dict[str, dict[str, int]] = {}
    topics: dict[str, OldTopic] = {}

    def after(self, changes: Iterable[OldChange]) -> Self:
        """The changes applied in order. ArchiveError where one is missing or contradicts what was before."""
        files, topics, sequence = dict(self.files), dict(self.topics), self.sequence
        through = {topic: dict(positions) for topic, positions in self.through.items()}
        for change in changes:
            if change.sequence != sequence + 1:
                raise ArchiveError(
                    f"the archive's log lacks change {sequence + 1} and goes on with {change.sequence}"
                )
            sequence = change.sequence
            for path in change.removed:
                if files.pop(path, None) is None:
                    raise ArchiveError(
                        f"change {sequence} of the archive's log removes {path}, which it does not have"
                    )
            files.update({added.path: added for added in change.added})
            topics.update(change.topics)
            for topic, positions in change.through.items():
                through.setdefault(topic, {}).update(positions)
        return type(self)(sequence=sequence, files=files, through=through, topics=topics)

    def names(self) -> list[str]:
        return sorted({*self.topics, *self.through})

    def positions_of(self, topic: str) -> dict[int, int]:
        return {int(number): offset for number, offset in self.through.get(topic, {}).items()}

    def partitions_of(self, topic: str) -> int:
        """How many the topic had when it was last looked at; never fewer than have records here."""
        facts = self.topics.get(topic)
        return max([facts.partitions if facts else 0, *(n + 1 for n in self.positions_of(topic))])

    def files_of(self, topic: str) -> list[OldFile]:
        """By date and name."""
        return sorted(
            (file for file in self.files.values() if file.topic == topic), key=lambda file: file.path
        )


def load_old_archive(root: str) -> OldState:
    """The archive as its log has it. No program may be writing to it."""
    folder = os.path.join(root, OLD_LOG)
    names = sorted(name for name in os.listdir(folder) if name[:1].isdecimal())
    snapshots = [name for name in names if name.endswith(SNAPSHOT)]
    state = _decoded(folder, snapshots[-1], OldState) if snapshots else OldState()
    numbers = [name for name in names if name.endswith(CHANGE) and not name.endswith(SNAPSHOT)]
    newer = [name for name in numbers if int(name.removesuffix(CHANGE)) > state.sequence]
    return state.after(_decoded(folder, name, OldChange) for name in newer)


Found = TypeVar("Found", OldChange, OldState)


def _decoded(folder: str, name: str, kind: type[Found]) -> Found:
    """ArchiveError where the file is not what its name says."""
    with open(os.path.join(folder, name), "rb") as file:
        content = file.read()
    try:
        found = msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as problem:
        raise ArchiveError(f"{name} of the archive's log cannot be read: {problem}") from None
    if found.version != VERSION:
        raise ArchiveError(
            f"{name} of the archive's log has format {found.version}, and this Penstock knows {VERSION}"
        )
    return found
