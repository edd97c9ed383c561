"""A topic with a window stores each message id once, from any producer, and returns the stored offset."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from inspect import isawaitable

import pytest

from penstock.batch import Record, build_batch, check_batch, iter_headers, read_records
from penstock.cluster import alterations
from penstock.config import Limits, NodeConfig
from penstock.errors import CorruptLog, ErrorCode
from penstock.kafka.handlers.context import Api, RequestContext
from penstock.kafka.handlers.produce import produce
from penstock.kafka.handlers.topic_rules import TopicRules
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.log import Log
from penstock.log.memory_disk import MemoryDisk
from penstock.node import Node, Partition
from penstock.node.calls import BROKER
from penstock.node.dedup import deduplication
from penstock.node.dedup.message_ids import DIGEST_SIZE
from penstock.types import ANONYMOUS, Caller, Offset, Operation, Term

PRODUCE = Api(0, 13, "produce", on_topic=Operation.WRITE)
NAME = "penstock-message-id"
NOW_MS = 1_700_000_000_000
WINDOW_MS = 3_600_000
PATIENCE_SECONDS = 60.0


def digest_of(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=DIGEST_SIZE).digest()


class HandClock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class LastingDisk(MemoryDisk):
    """Survives a restart of its node."""

    volatile = False


class Line:
    """A connection; it records whether later requests are held."""

    peer = "10.0.0.1:5000"
    client_software = ""

    def __init__(self) -> None:
        self.held = 0
        self.callbacks: list[Callable[[], None]] = []

    def send_away(self) -> None: ...

    def when_closed(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def hold(self) -> Callable[[], None]:
        self.held += 1

        def let_go() -> None:
            self.held -= 1

        return let_go


class TopicHarness:
    """A node with a topic `t`, and a client of it."""

    def __init__(self, node: Node, clock: HandClock) -> None:
        self.node = node
        self.clock = clock
        self.line = Line()

    @property
    def partition(self) -> Partition:
        return self.node.leader("t", 0)

    def ask(
        self,
        *ids: str,
        producer_id: int = -1,
        sequence: int = -1,
        epoch: int = -1,
        acks: int = -1,
        compression: int = 0,
        timestamp: int | None = None,
        line: Line | None = None,
        timeout_ms: int = 60_000,
    ) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
        """A batch of records with these ids; "" has none. The value of a record is its id."""
        stamp = self.clock.now_ms if timestamp is None else timestamp
        rows = [
            Record(i, stamp, b"k", one.encode(), ((NAME, one.encode()),) if one else ())
            for i, one in enumerate(ids)
        ]
        batch = build_batch(
            rows,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=max(epoch, 0) if producer_id >= 0 else -1,
            base_sequence=sequence,
        )
        data = PartitionProduceData(index=0, records=memoryview(bytearray(batch)))
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name="t", partition_data=[data])],
        )
        context = RequestContext(
            node=self.node,
            connection=line or self.line,
            caller=Caller(client_id="tester"),
            api=PRODUCE,
            api_version=9,
        )
        return produce(context, request)

    async def send(self, *ids: str, **wishes: int) -> int:
        """The offset in the response."""
        row = await self.answer(self.ask(*ids, **wishes))  # type: ignore[arg-type]
        assert row.error_code == ErrorCode.NONE, row.error_message
        return row.base_offset

    async def answer(
        self, asked: ProduceResponse | Awaitable[ProduceResponse | None] | None
    ) -> PartitionProduceResponse:
        response = await asyncio.wait_for(asked, PATIENCE_SECONDS) if isawaitable(asked) else asked
        assert isinstance(response, ProduceResponse)
        return response.responses[0].partition_responses[0]

    def stored(self) -> list[tuple[int, str]]:
        """Offset and value of every record in the log."""
        log, offset, rows = self.partition.log, Offset(0), []
        while offset < log.end_offset:
            chunk = log.read(offset, 10**6, limit=log.end_offset)
            for position, header in iter_headers(chunk):
                rows += [(row.offset, (row.value or b"").decode()) for row in read_records(chunk, position)]
                offset = Offset(header.next_offset)
        return rows

    async def configure(self, **configs: str) -> None:
        """The topic's configs, with underscores for their dots, become these."""
        wishes = {name.replace("_", "."): value for name, value in configs.items()}
        await self.node.metadata.change(
            lambda state: alterations.replace_topic_configs(state, "t", dict(wishes))
        )


def play(
    scenario: Callable[[TopicHarness], Awaitable[None]],
    *,
    limits: Limits | None = None,
    disk: MemoryDisk | None = None,
    later_ms: int = 0,
    **configs: str,
) -> None:
    async def run() -> None:
        clock = HandClock()
        clock.now_ms += later_ms
        config = NodeConfig(memory=True, http=None, limits=limits or Limits())
        node = Node(config, clock=clock, disk=disk or LastingDisk())
        await node.start()
        harness = TopicHarness(node, clock)
        if "t" not in node.metadata.state.topics:
            await node.controller.create_topic("t", caller=BROKER)
            await harness.configure(**{"dedup_window_ms": str(WINDOW_MS), **configs})
        try:
            await scenario(harness)
        finally:
            await node.stop()

    asyncio.run(run())


# --- batches and their responses


def test_a_duplicate_of_a_producer_without_id_is_not_stored_and_gets_the_first_offset() -> None:
    async def scenario(harness: TopicHarness) -> None:
        assert [await harness.send(one) for one in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]
        assert harness.stored() == [(0, "a"), (1, "b"), (2, "c")]

    play(scenario)


@pytest.mark.parametrize("codec", range(5))
def test_only_the_new_records_of_a_batch_are_stored_at_the_offsets_that_their_producer_expects(
    codec: int,
) -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a", "b", compression=codec)
        assert await harness.send("c", "a", "d", "", "b", compression=codec) == 2
        assert harness.stored() == [(0, "a"), (1, "b"), (2, "c"), (4, "d"), (5, "")]
        assert await harness.send("e") == 7

    play(scenario)


def test_a_batch_that_is_sent_again_as_a_whole_gets_its_first_offsets() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("x")
        assert await harness.send("a", "b", "c") == 1
        assert await harness.send("a", "b", "c") == 1
        assert len(harness.stored()) == 4

    play(scenario)


def test_twice_the_same_id_in_one_batch_is_stored_once() -> None:
    async def scenario(harness: TopicHarness) -> None:
        assert await harness.send("a", "a", "b", "a") == 0
        assert harness.stored() == [(0, "a"), (2, "b")]
        assert await harness.send("b") == 2

    play(scenario)


def test_after_the_window_the_same_id_is_another_message() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        harness.clock.now_ms += WINDOW_MS - 1
        assert await harness.send("a") == 0
        harness.clock.now_ms += 1
        assert await harness.send("a") == 1
        assert await harness.send("a") == 1

    play(scenario)


def test_ids_are_kept_per_partition() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.node.controller.create_topic("other", caller=BROKER)
        await harness.send("a")
        assert harness.node.leader("other", 0) not in harness.node.dedup._partitions

    play(scenario)


def test_a_too_long_id_is_refused_and_its_batch_is_not_stored() -> None:
    async def scenario(harness: TopicHarness) -> None:
        row = await harness.answer(harness.ask("fine", "x" * 257))
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert "record 1: penstock-message-id of 257 bytes" in (row.error_message or "")
        assert await harness.send("fine") == 0

    play(scenario)


def test_the_number_of_ids_in_one_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: TopicHarness) -> None:
        row = await harness.answer(harness.ask(*"abcd"))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await harness.send(*"abc") == 0
        assert len(harness.stored()) == 3

    monkeypatch.setattr("penstock.kafka.handlers.produce.TopicRules", partial(TopicRules, ids_left=3))
    play(scenario)


# --- idempotent producers


def test_sequence_numbers_continue_over_batches_of_duplicates_only() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a", "b", producer_id=1, sequence=0)
        assert await harness.send("a", "b", producer_id=2, sequence=0) == 0
        assert await harness.send("b", producer_id=2, sequence=2) == 1
        assert await harness.send("c", producer_id=2, sequence=3) == 5
        assert harness.stored() == [(0, "a"), (1, "b"), (5, "c")]
        wrong = await harness.answer(harness.ask("d", producer_id=2, sequence=7))
        assert wrong.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    play(scenario)


def test_a_producer_that_repeats_a_batch_gets_the_same_response() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        for _ in range(2):
            assert await harness.send("a", producer_id=1, sequence=0) == 0  # all duplicates
            assert await harness.send("b", "a", producer_id=1, sequence=1) == 2  # some duplicates
            assert await harness.send("a", "c", producer_id=1, sequence=3) == 4
            assert await harness.send("", producer_id=1, sequence=5) == 6  # no duplicates
        assert harness.stored() == [(0, "a"), (2, "b"), (5, "c"), (6, "")]
        assert harness.partition.log.end_offset == 7

    play(scenario)


def test_sequence_numbers_survive_a_restart_although_their_records_were_omitted() -> None:
    disk = LastingDisk()

    async def before(harness: TopicHarness) -> None:
        await harness.send("a", "b")
        await harness.send("a", "b", producer_id=1, sequence=0)
        await harness.send("c", "a", producer_id=1, sequence=2)

    async def after(harness: TopicHarness) -> None:
        assert await harness.send("c", "a", producer_id=1, sequence=2) == 4
        assert await harness.send("d", producer_id=1, sequence=4) == 6
        assert harness.stored() == [(0, "a"), (1, "b"), (4, "c"), (6, "d")]

    play(before, disk=disk)
    play(after, disk=disk)


def test_the_latest_record_by_time_is_found_although_empty_batches_came_later() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        harness.clock.now_ms += 1000
        await harness.send("a", producer_id=1, sequence=0)
        log = harness.partition.log
        assert log.max_timestamp(log.end_offset) == (NOW_MS, 0, harness.partition.term)

    play(scenario)


# --- a duplicate is answered after the first one is committed


class NoFlushes:
    """No flush can begin, so nothing is committed."""

    def begin(self) -> None:
        return None


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_duplicate_of_an_uncommitted_record_waits_for_the_same_commit(acks: int) -> None:
    async def scenario(harness: TopicHarness) -> None:
        partition = harness.partition
        await harness.send("before")
        flushes = partition.log.flushes
        partition.log.flushes = NoFlushes()  # type: ignore[assignment]
        first = harness.ask("a", acks=1)
        assert isinstance(first, ProduceResponse)
        duplicate = harness.ask("a", acks=acks)
        assert isawaitable(duplicate)
        waiting = asyncio.ensure_future(duplicate)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        partition.log.flushes = flushes
        harness.node.storage.flusher.mark(partition.replica)
        assert (await harness.answer(waiting)).base_offset == 1

    play(scenario)


# --- limits and warnings


def test_above_the_limit_the_oldest_ids_are_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(harness: TopicHarness) -> None:
        for one in "abcde":
            await harness.send(one)
        assert await harness.send("e") == 4
        assert await harness.send("a") == 5

    with caplog.at_level(logging.WARNING):
        play(scenario, limits=Limits(max_dedup_ids_per_partition=3))
    warnings = [one.getMessage() for one in caplog.records if "message ids" in one.getMessage()]
    assert warnings == [
        "t-0 has more than 3 message ids within dedup.window.ms=3600000: the oldest are forgotten earlier "
        "(limits.max_dedup_ids_per_partition)"
    ]


def test_old_timestamps_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: TopicHarness) -> None:
        for one in "ab":
            await harness.send(one, timestamp=NOW_MS - deduplication.CLOCKS_APART_MS - 1)

    with caplog.at_level(logging.WARNING):
        play(scenario)
    [warning] = [one.getMessage() for one in caplog.records if "message ids" in one.getMessage()]
    assert "timestamps that are 300 s old" in warning
    assert "message.timestamp.type=LogAppendTime" in warning


# --- topics without deduplication


def test_a_topic_without_a_window_opens_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a batch was opened")

    monkeypatch.setattr("penstock.kafka.handlers.topic_rules.read_ids", never)
    monkeypatch.setattr("penstock.kafka.handlers.topic_rules.scan_batch", never)
    monkeypatch.setattr("penstock.batch.compression.decompress", never)

    async def scenario(harness: TopicHarness) -> None:
        assert [await harness.send("a", compression=1), await harness.send("a")] == [0, 1]
        assert len(harness.node.dedup) == 0
        await harness.configure(dedup_window_ms="1000")
        with pytest.raises(AssertionError, match="a batch was opened"):
            harness.ask("b")

    play(scenario, dedup_window_ms="0")


# --- loading the index


def test_ids_survive_a_restart_for_at_least_the_rest_of_their_window() -> None:
    disk = LastingDisk()

    async def before(harness: TopicHarness) -> None:
        await harness.send("a")
        harness.clock.now_ms += WINDOW_MS // 2
        await harness.send("b")

    async def soon(harness: TopicHarness) -> None:
        assert [await harness.send("a"), await harness.send("b")] == [0, 1]

    async def later(harness: TopicHarness) -> None:
        assert [await harness.send("b"), await harness.send("a")] == [1, 2]

    play(before, disk=disk)
    play(soon, disk=disk, later_ms=WINDOW_MS - 1)
    play(later, disk=disk, later_ms=WINDOW_MS + deduplication.CLOCKS_APART_MS + 1)


def test_a_producers_clock_may_be_minutes_slow() -> None:
    disk = LastingDisk()

    async def before(harness: TopicHarness) -> None:
        await harness.send("a", timestamp=NOW_MS - deduplication.CLOCKS_APART_MS)

    async def after(harness: TopicHarness) -> None:
        assert await harness.send("a") == 0

    play(before, disk=disk)
    play(after, disk=disk, later_ms=WINDOW_MS - 1)


def test_a_producers_fast_clock_keeps_no_id_longer_than_a_window_from_now() -> None:
    disk = LastingDisk()

    async def before(harness: TopicHarness) -> None:
        await harness.send("a", timestamp=NOW_MS + 3_000_000)

    async def after(harness: TopicHarness) -> None:
        assert await harness.send("a") == 0
        harness.clock.now_ms += WINDOW_MS
        assert await harness.send("a") == 1

    play(before, disk=disk)
    play(after, disk=disk)


def test_a_window_that_is_set_later_or_grows_includes_stored_records() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        await harness.configure(dedup_window_ms="1000")
        assert await harness.send("a") == 0
        await harness.configure()
        assert len(harness.node.dedup) == 0
        assert await harness.send("a") == 1
        await harness.configure(dedup_window_ms="1000")
        assert await harness.send("a") == 0
        harness.clock.now_ms += 1000
        assert await harness.send("b") == 2
        assert harness.node.dedup.of(harness.partition).index.find(digest_of("a")) is None
        await harness.configure(dedup_window_ms=str(WINDOW_MS))
        assert await harness.send("a") == 0

    play(scenario, dedup_window_ms="0")


def test_the_index_belongs_to_one_term() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        memory = harness.node.dedup.of(harness.partition)
        assert harness.node.dedup.of(harness.partition) is memory
        harness.partition.term = Term(harness.partition.term + 1)
        assert harness.node.dedup.of(harness.partition) is not memory
        assert await harness.send("a") == 0

    play(scenario)


def test_batches_that_were_appended_otherwise_are_indexed_before_the_next_check() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        rows = [Record(0, NOW_MS, b"k", b"dead letter", ((NAME, b"b"),))]
        batch = memoryview(bytearray(build_batch(rows)))
        harness.partition.append(batch, check_batch(batch))
        assert await harness.send("b") == 1

    play(scenario)


def test_an_unparsable_batch_does_not_stop_loading() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        batch = bytearray(build_batch([Record(0, NOW_MS, b"k", b"v", ())], compression=1))
        header = check_batch(batch)
        batch[65:] = bytes(len(batch) - 65)  # it claims to be gzip, and is not
        harness.partition.append(memoryview(batch), header)
        await harness.configure(dedup_window_ms=str(WINDOW_MS))
        assert await harness.send("a") == 0

    play(scenario, dedup_window_ms="0")


def test_while_the_index_loads_producers_wait_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = LastingDisk()

    async def before(harness: TopicHarness) -> None:
        for number in range(50):
            await harness.send(f"id {number}")

    async def after(harness: TopicHarness) -> None:
        await harness.node.dedup.stop()  # the loading that the start began
        monkeypatch.setattr(deduplication, "RECORDS_PER_TURN", 1)
        asked = harness.ask("id 49", "new", producer_id=1, sequence=0)
        assert isawaitable(asked)
        assert harness.line.held == 1
        assert len(harness.stored()) == 50
        assert (await harness.answer(asked)).base_offset == 50
        assert harness.line.held == 0
        assert harness.stored()[50:] == [(51, "new")]
        monkeypatch.undo()

    play(before, disk=disk)
    play(after, disk=disk)


def test_records_deleted_during_loading_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: TopicHarness) -> None:
        for one in "abcdef":
            await harness.send(one)
        await harness.node.dedup.stop()
        monkeypatch.setattr(deduplication, "RECORDS_PER_TURN", 1)
        monkeypatch.setattr(deduplication, "READ_BYTES", 1)
        asked = harness.ask("f")
        assert isawaitable(asked)
        harness.partition.delete_records(Offset(4))
        assert (await harness.answer(asked)).base_offset == 5

    play(scenario)


def test_a_producer_whose_timeout_ends_during_loading_gets_a_retriable_error() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        memory = harness.node.dedup.of(harness.partition)
        memory.loading = asyncio.get_running_loop().create_future()
        row = await harness.answer(harness.ask("b", timeout_ms=1))
        assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "reads message ids back" in (row.error_message or "")
        assert harness.line.held == 0
        memory.stop()
        assert await harness.send("b") == 1

    play(scenario)


def test_other_partitions_of_a_request_are_appended_without_waiting() -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.node.controller.create_topic("free", caller=BROKER)
        memory = harness.node.dedup.of(harness.partition)
        memory.loading = asyncio.get_running_loop().create_future()
        rows = [
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(
                        index=0, records=memoryview(bytearray(build_batch([Record(0, NOW_MS, b"k", b"v")])))
                    )
                ],
            )
            for name in ("t", "free")
        ]
        context = RequestContext(
            node=harness.node, connection=harness.line, caller=ANONYMOUS, api=PRODUCE, api_version=9
        )
        asked = produce(context, ProduceRequest(acks=1, timeout_ms=60_000, topic_data=rows))
        assert isawaitable(asked)
        assert harness.node.leader("free", 0).log.end_offset == 1
        memory.stop()
        response = await asked
        assert response is not None
        answers = [topic.partition_responses[0] for topic in response.responses]
        assert [(one.error_code, one.base_offset) for one in answers] == [(0, 0), (0, 0)]

    play(scenario)


def test_writes_are_refused_while_the_index_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: TopicHarness) -> None:
        await harness.send("a")
        await harness.node.dedup.stop()

        def rotten(*_: object, **__: object) -> bytes:
            raise CorruptLog("t-0/00.log", 7, "rot")

        with monkeypatch.context() as patched:
            patched.setattr(Log, "read", rotten)
            row = await harness.answer(harness.ask("a"))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "message ids cannot be read back" in (row.error_message or "")
        assert await harness.send("a") == 0

    play(scenario)


# --- one producer at a time


def test_a_second_producer_is_refused_until_the_first_one_s_connection_has_ended() -> None:
    async def scenario(harness: TopicHarness) -> None:
        first, second = Line(), Line()
        await harness.answer(harness.ask("a", line=first))
        row = await harness.answer(harness.ask("b", line=second))
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        assert "client 'tester' at 10.0.0.1:5000 has held it since 2023-11-14" in (row.error_message or "")
        assert len(harness.stored()) == 1
        first.callbacks[0]()
        assert (await harness.answer(harness.ask("b", line=second))).error_code == ErrorCode.NONE

    play(scenario, penstock_producer_exclusive="true", dedup_window_ms="0")


def test_a_failed_write_does_not_own_the_partition() -> None:
    async def scenario(harness: TopicHarness) -> None:
        first, second = Line(), Line()
        refused = await harness.answer(harness.ask("x" * 257, line=first))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert (await harness.answer(harness.ask("b", line=second))).error_code == ErrorCode.NONE

    play(scenario, penstock_producer_exclusive="true")
