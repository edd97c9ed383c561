"""Restarts from checkpoints at every stage that a crash can leave behind.

For batch N, Spark writes in this order: offsets/N (it is planned), the sink's own record of it (_spark_metadata/N of
a folder of Parquet files), commits/N. A crash leaves a beginning of this, and perhaps files that are in no log. These
tests run a query over several batches, take away what came after some stage, and go on. The query starts at the end of
the topic, which is elsewhere when it is asked for again.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from tests.spark.faults.gate import Gate
from tests.spark.faults.records import create, fill, logged, numbers_in
from tests.spark.faults.session_driver import SessionDriver

OLD = 50
NEW = 200
PER_BATCH = 100
LAST = NEW // PER_BATCH - 1
"""Two batches: the first, whose start Spark does not keep, and one that continues another."""

Unique = Callable[[str], str]


class Stream:
    """A query over records that were written after it had read the end of their topic."""

    def __init__(self, driver: SessionDriver, servers: str, folder: Path, topic: str, gate: Gate) -> None:
        self.driver = driver
        self.servers = servers
        self.topic = topic
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.gate = gate
        self.gate.open()
        self.source = {
            "kafka.bootstrap.servers": servers,
            "subscribe": create(servers, topic, 1),
            "maxOffsetsPerTrigger": str(PER_BATCH),
        }

    def run_all_batches(self, start: Callable[[], None]) -> None:
        fill(self.servers, self.topic, range(-OLD, NEW), 1)
        self.source["startingOffsets"] = json.dumps(
            {self.topic: {"0": OLD}}
        )  # what "latest" was after the old ones
        self.again(start)
        self.source["startingOffsets"] = "latest"
        assert logged(self.checkpoint, "commits") == list(range(LAST + 1))

    def to_parquet(self) -> None:
        sink = {"path": str(self.out), "checkpointLocation": str(self.checkpoint)}
        self._start(sink)

    def to_topic(self, topic: str) -> None:
        sink = {"kafka.bootstrap.servers": self.servers, "topic": topic}
        self._start({**sink, "checkpointLocation": str(self.checkpoint)})

    def _start(self, sink: dict[str, str]) -> None:
        self.driver.ask("start", name="stream", source=self.source, sink=sink, gate=str(self.gate.folder))

    def to_batches(self) -> None:
        self.driver.ask(
            "start_by_batches",
            name="stream",
            source=self.source,
            path=str(self.out),
            checkpoint=str(self.checkpoint),
            gate=str(self.gate.folder),
        )

    def again(self, start: Callable[[], None]) -> None:
        start()
        self.driver.ask("finish", name="stream")

    def written(self) -> list[int]:
        found = self.driver.ask("numbers", path=str(self.out))
        assert isinstance(found, list)
        return found


@pytest.fixture
def stream(
    session_driver: SessionDriver, broker: Broker, unique: Unique, gate: Gate, tmp_path: Path
) -> Stream:
    return Stream(session_driver, broker.bootstrap_servers, tmp_path, unique("source"), gate)


def forget(log: Path, first: int) -> None:
    """Removes this batch and later ones from a log of Spark's, with the checksums."""
    for path in log.iterdir():
        number = path.name.removeprefix(".").removesuffix(".crc")
        if number.isdecimal() and int(number) >= first:
            path.unlink()


def test_parquet_has_every_record_once_from_every_stage(stream: Stream, tmp_path: Path) -> None:
    stream.run_all_batches(stream.to_parquet)
    saved = tmp_path / "saved"
    shutil.copytree(stream.checkpoint, saved / "checkpoint")
    shutil.copytree(stream.out, saved / "out")
    for batch in (0, LAST):
        for planned, recorded in ((False, False), (True, False), (True, True)):
            if batch == 0 and not planned:
                continue  # no state of the query is left: it is a new one, and starts at the end
            shutil.copytree(saved / "checkpoint", stream.checkpoint, dirs_exist_ok=True)
            shutil.copytree(saved / "out", stream.out, dirs_exist_ok=True)
            forget(stream.checkpoint / "commits", batch)
            forget(stream.checkpoint / "offsets", batch + 1 if planned else batch)
            forget(stream.out / "_spark_metadata", batch + 1 if recorded else batch)
            stream.again(stream.to_parquet)
            assert stream.written() == list(range(NEW)), f"{batch=} {planned=} {recorded=}"


def test_a_topic_has_every_record_once_although_a_batch_is_run_again(stream: Stream, unique: Unique) -> None:
    target = create(stream.servers, unique("target"), 1)
    start = lambda: stream.to_topic(target)  # noqa: E731 - it is given on, twice
    stream.run_all_batches(start)
    forget(stream.checkpoint / "commits", LAST)
    stream.again(start)
    found = Counter(numbers_in(stream.servers, target, 1))
    assert found == dict.fromkeys(range(NEW), 1)


def test_a_batch_function_gets_the_same_rows_under_the_same_number_again(stream: Stream) -> None:
    stream.run_all_batches(stream.to_batches)
    for batch in (LAST, 0):
        # Each folder from this batch on is damaged: only the same rows under the same number repair all of them.
        for number in range(batch, LAST + 1):
            shutil.rmtree(stream.out / f"batch={number}", ignore_errors=True)
        forget(stream.checkpoint / "commits", batch)
        forget(stream.checkpoint / "offsets", batch + 1)
        stream.again(stream.to_batches)
        assert stream.written() == list(range(NEW)), f"{batch=}"
