"""Fakes for an archive's planning, without a JVM and without a broker."""

from collections.abc import Iterable
from typing import Any, cast

from penstock.spark.pipelines.files import Files, Listed
from penstock.spark.planner import Layout, Planner
from penstock.types import TopicPartition


class MemoryFiles:
    """The files of a checkpoint."""

    root = "memory:/archive"

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def names(self, folder: str) -> list[Listed]:
        inside = (path.removeprefix(f"{folder}/") for path in self.content if path.startswith(f"{folder}/"))
        names = {name.partition("/")[::2] for name in inside}
        return sorted(Listed(name, bool(rest)) for name, rest in names)

    def read(self, path: str) -> bytes | None:
        return self.content.get(path)

    def write(self, path: str, content: bytes) -> None:
        self.content[path] = content


class FakePlanner:
    """Topics of one partition, by id, all with the same first and next offset."""

    def __init__(self, ids: dict[str, str], *, earliest: int = 0, latest: int = 0) -> None:
        self.ids = ids
        self._earliest, self._latest = earliest, latest

    def layout(self, *, require_all: bool) -> Layout:
        return Layout(
            topic_partitions=tuple(TopicPartition(topic, 0) for topic in self.ids), topic_ids=self.ids
        )

    def earliest(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, self._earliest)

    def latest(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, self._latest)

    def close(self) -> None:
        pass


def as_files(files: MemoryFiles) -> Files:
    return cast(Files, files)


def fake_planner(ids: dict[str, str], **offsets: Any) -> Planner:
    return cast(Planner, FakePlanner(ids, **offsets))
