"""The contents of an archive's log: which files it consists of, and how far it goes.

    PATH/_penstock/log/00000000000000000007.json            one change: files added and removed, or a claim
    PATH/_penstock/log/00000000000000000050.snapshot.json   all changes up to this one: readers start here

The numbers have no gaps. A change is committed when its file exists; the files are never changed afterwards. A `claim`
changes nothing: a writer appends it when it starts, so that an earlier writer finds its next number taken.

The archive consists of the files that the log names, and of no others. This module touches no file.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, Self, TypeVar

import msgspec

from penstock.spark.pipelines.problems import ArchiveError
from penstock.types import TopicPartition

VERSION: Final = 1

Kind = Literal["claim", "batch", "compaction"]
Positions = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition; partitions are text, as in JSON."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one partition in a file. Offsets from first to last, both in it; there may be holes."""

    partition: int
    first: int
    last: int
    rows: int


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Relative to the archive: topic=T/date=D/NAME."""
    topic: str
    date: str
    size_bytes: int
    ranges: tuple[Range, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.ranges)


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: str
    """A topic that was deleted and created again has another."""
    partitions: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    version: int = VERSION
    sequence: int
    writer: str
    kind: Kind
    at: str
    """When, in UTC, for people."""
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    through: dict[str, dict[str, int]] = {}
    """The next offset that is not archived, for each partition that this change moved."""
    topics: dict[str, TopicFacts] = {}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """An archive after all changes up to `sequence`."""

    version: int = VERSION
    sequence: int = 0
    writer: str = ""
    files: dict[str, DataFile] = {}
    through: dict[str, dict[str, int]] = {}
    topics: dict[str, TopicFacts] = {}

    def after(self, changes: Iterable[Manifest]) -> Self:
        """The changes applied in order. ArchiveError where one is missing or contradicts what was before."""
        files = dict(self.files)
        through = {topic: dict(positions) for topic, positions in self.through.items()}
        topics = dict(self.topics)
        sequence, writer = self.sequence, self.writer
        for change in changes:
            if change.sequence != sequence + 1:
                raise ArchiveError(
                    f"the archive's log lacks change {sequence + 1} and goes on with {change.sequence}"
                )
            sequence, writer = change.sequence, change.writer
            for path in change.removed:
                if files.pop(path, None) is None:
                    raise ArchiveError(
                        f"change {sequence} of the archive's log removes {path}, which it does not have"
                    )
            files.update({added.path: added for added in change.added})
            topics.update(change.topics)
            for topic, positions in change.through.items():
                through.setdefault(topic, {}).update(positions)
        return type(self)(sequence=sequence, writer=writer, files=files, through=through, topics=topics)

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that is not archived."""
        return {
            TopicPartition(topic, int(number)): offset
            for topic, by_partition in self.through.items()
            for number, offset in by_partition.items()
        }

    def partitions_of(self, topic: str) -> int:
        """How many the topic had when it was last looked at; never fewer than have records here."""
        facts = self.topics.get(topic)
        known = facts.partitions if facts else 0
        return max([known, *(int(number) + 1 for number in self.through.get(topic, ()))])

    def of_topics(self, topics: Iterable[str] | None) -> list[DataFile]:
        """Files of these topics, or all, in a fixed order."""
        wanted = None if topics is None else frozenset(topics)
        files = [file for file in self.files.values() if wanted is None or file.topic in wanted]
        return sorted(files, key=lambda file: file.path)


def ends_of(files: Iterable[DataFile]) -> dict[str, dict[str, int]]:
    """The offset after the last one that these files hold, by topic and partition."""
    ends: dict[str, dict[str, int]] = {}
    for file in files:
        by_partition = ends.setdefault(file.topic, {})
        for part in file.ranges:
            number = str(part.partition)
            by_partition[number] = max(by_partition.get(number, 0), part.last + 1)
    return ends


Found = TypeVar("Found", Manifest, State)


def decode(content: bytes, kind: type[Found], name: str) -> Found:
    """ArchiveError where the file is not what its name says."""
    try:
        found = msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as problem:
        raise ArchiveError(f"{name} of the archive's log cannot be read: {problem}") from None
    if found.version != VERSION:
        raise ArchiveError(
            f"{name} of the archive's log has format {found.version}, and this Penstock knows {VERSION}: take a newer"
        )
    return found
