"""A topic with a window stores each message id once, whoever sends it, and tells its producers where."""

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
PATIENCE_SECONDS = 30.0


def digest_of(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=DIGEST_SIZE).digest()


class HandClock:
    """Time that goes by when the test says so."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class LastingDisk(MemoryDisk):
    """There again when its node is."""

    volatile = False


class Line:
    """A connection; it notes whether later requests are held."""

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


class Scene:
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
        """The offset that the producer is told."""
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
    scene: Callable[[Scene], Awaitable[None]],
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
        act = Scene(node, clock)
        if "t" not in node.metadata.state.topics:
            await node.controller.create_topic("t", caller=BROKER)
            await act.configure(**{"dedup_window_ms": str(WINDOW_MS), **configs})
        try:
            await scene(act)
        finally:
            await node.stop()

    asyncio.run(run())


# --- batches and what is said of them


def test_a_duplicate_of_a_producer_without_id_is_not_stored_and_told_the_first_one_s_offset() -> None:
    async def scene(act: Scene) -> None:
        assert [await act.send(one) for one in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]
        assert act.stored() == [(0, "a"), (1, "b"), (2, "c")]

    play(scene)


@pytest.mark.parametrize("codec", range(5))
def test_of_a_batch_only_the_new_records_are_stored_at_the_offsets_that_their_producer_counts(
    codec: int,
) -> None:
    async def scene(act: Scene) -> None:
        await act.send("a", "b", compression=codec)
        assert await act.send("c", "a", "d", "", "b", compression=codec) == 2
        assert act.stored() == [(0, "a"), (1, "b"), (2, "c"), (4, "d"), (5, "")]
        assert await act.send("e") == 7

    play(scene)


def test_a_batch_that_is_sent_again_whole_is_told_all_its_offsets() -> None:
    async def scene(act: Scene) -> None:
        await act.send("x")
        assert await act.send("a", "b", "c") == 1
        assert await act.send("a", "b", "c") == 1
        assert len(act.stored()) == 4

    play(scene)


def test_twice_the_same_id_in_one_batch_is_stored_once() -> None:
    async def scene(act: Scene) -> None:
        assert await act.send("a", "a", "b", "a") == 0
        assert act.stored() == [(0, "a"), (2, "b")]
        assert await act.send("b") == 2

    play(scene)


def test_after_the_window_the_same_id_is_another_message() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        act.clock.now_ms += WINDOW_MS - 1
        assert await act.send("a") == 0
        act.clock.now_ms += 1
        assert await act.send("a") == 1
        assert await act.send("a") == 1

    play(scene)


def test_partitions_do_not_know_each_other_s_ids() -> None:
    async def scene(act: Scene) -> None:
        await act.node.controller.create_topic("other", caller=BROKER)
        await act.send("a")
        assert act.node.leader("other", 0) not in act.node.dedup._partitions

    play(scene)


def test_an_id_that_is_too_long_is_refused_and_nothing_of_its_batch_stored() -> None:
    async def scene(act: Scene) -> None:
        row = await act.answer(act.ask("fine", "x" * 257))
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert "record 1: penstock-message-id of 257 bytes" in (row.error_message or "")
        assert await act.send("fine") == 0

    play(scene)


def test_what_one_request_may_make_the_broker_compare_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(act: Scene) -> None:
        row = await act.answer(act.ask(*"abcd"))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await act.send(*"abc") == 0
        assert len(act.stored()) == 3

    monkeypatch.setattr("penstock.kafka.handlers.produce.TopicRules", partial(TopicRules, ids_left=3))
    play(scene)


# --- idempotent producers


def test_sequence_numbers_go_on_over_batches_that_were_nothing_but_duplicates() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a", "b", producer_id=1, sequence=0)
        assert await act.send("a", "b", producer_id=2, sequence=0) == 0
        assert await act.send("b", producer_id=2, sequence=2) == 1
        assert await act.send("c", producer_id=2, sequence=3) == 5
        assert act.stored() == [(0, "a"), (1, "b"), (5, "c")]
        wrong = await act.answer(act.ask("d", producer_id=2, sequence=7))
        assert wrong.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    play(scene)


def test_a_producer_that_repeats_a_batch_gets_the_answer_that_it_missed() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        for _ in range(2):
            assert await act.send("a", producer_id=1, sequence=0) == 0  # wholly a duplicate
            assert await act.send("b", "a", producer_id=1, sequence=1) == 2  # in part
            assert await act.send("a", "c", producer_id=1, sequence=3) == 4
            assert await act.send("", producer_id=1, sequence=5) == 6  # not at all
        assert act.stored() == [(0, "a"), (2, "b"), (5, "c"), (6, "")]
        assert act.partition.log.end_offset == 7

    play(scene)


def test_sequence_numbers_are_known_after_a_restart_although_their_records_were_left_out() -> None:
    disk = LastingDisk()

    async def before(act: Scene) -> None:
        await act.send("a", "b")
        await act.send("a", "b", producer_id=1, sequence=0)
        await act.send("c", "a", producer_id=1, sequence=2)

    async def after(act: Scene) -> None:
        assert await act.send("c", "a", producer_id=1, sequence=2) == 4
        assert await act.send("d", producer_id=1, sequence=4) == 6
        assert act.stored() == [(0, "a"), (1, "b"), (4, "c"), (6, "d")]

    play(before, disk=disk)
    play(after, disk=disk)


def test_the_latest_record_by_time_is_found_although_empty_batches_came_later() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        act.clock.now_ms += 1000
        await act.send("a", producer_id=1, sequence=0)
        log = act.partition.log
        assert log.max_timestamp(log.end_offset) == (NOW_MS, 0, act.partition.term)

    play(scene)


# --- never earlier than the first one is committed


class NoFlushes:
    """No flush can begin, so nothing is committed."""

    def begin(self) -> None:
        return None


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_duplicate_of_what_is_not_committed_yet_waits_for_the_same_commit(acks: int) -> None:
    async def scene(act: Scene) -> None:
        partition = act.partition
        await act.send("before")
        flushes = partition.log.flushes
        partition.log.flushes = NoFlushes()  # type: ignore[assignment]
        first = act.ask("a", acks=1)
        assert isinstance(first, ProduceResponse)
        duplicate = act.ask("a", acks=acks)
        assert isawaitable(duplicate)
        waiting = asyncio.ensure_future(duplicate)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        partition.log.flushes = flushes
        act.node.storage.flusher.mark(partition.replica)
        assert (await act.answer(waiting)).base_offset == 1

    play(scene)


# --- limits and warnings


def test_past_the_limit_the_oldest_ids_are_forgotten_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(act: Scene) -> None:
        for one in "abcde":
            await act.send(one)
        assert await act.send("e") == 4
        assert await act.send("a") == 5

    with caplog.at_level(logging.WARNING):
        play(scene, limits=Limits(max_dedup_ids_per_partition=3))
    warnings = [one.getMessage() for one in caplog.records if "message ids" in one.getMessage()]
    assert warnings == [
        "t-0 has more than 3 message ids within dedup.window.ms=3600000: the oldest are forgotten earlier "
        "(limits.max_dedup_ids_per_partition)"
    ]


def test_timestamps_of_the_past_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(act: Scene) -> None:
        for one in "ab":
            await act.send(one, timestamp=NOW_MS - deduplication.CLOCKS_APART_MS - 1)

    with caplog.at_level(logging.WARNING):
        play(scene)
    [warning] = [one.getMessage() for one in caplog.records if "message ids" in one.getMessage()]
    assert "timestamps that are 300 s old" in warning
    assert "message.timestamp.type=LogAppendTime" in warning


# --- those who do not ask for it


def test_a_topic_without_a_window_opens_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a batch was opened")

    monkeypatch.setattr("penstock.kafka.handlers.topic_rules.read_ids", never)
    monkeypatch.setattr("penstock.kafka.handlers.topic_rules.scan_batch", never)
    monkeypatch.setattr("penstock.batch.compression.decompress", never)

    async def scene(act: Scene) -> None:
        assert [await act.send("a", compression=1), await act.send("a")] == [0, 1]
        assert len(act.node.dedup) == 0
        await act.configure(dedup_window_ms="1000")
        with pytest.raises(AssertionError, match="a batch was opened"):
            act.ask("b")

    play(scene, dedup_window_ms="0")


# --- reading back


def test_ids_are_known_after_a_restart_for_the_rest_of_their_window_at_least() -> None:
    disk = LastingDisk()

    async def before(act: Scene) -> None:
        await act.send("a")
        act.clock.now_ms += WINDOW_MS // 2
        await act.send("b")

    async def soon(act: Scene) -> None:
        assert [await act.send("a"), await act.send("b")] == [0, 1]

    async def later(act: Scene) -> None:
        assert [await act.send("b"), await act.send("a")] == [1, 2]

    play(before, disk=disk)
    play(soon, disk=disk, later_ms=WINDOW_MS - 1)
    play(later, disk=disk, later_ms=WINDOW_MS + deduplication.CLOCKS_APART_MS + 1)


def test_a_producer_s_clock_may_be_minutes_late() -> None:
    disk = LastingDisk()

    async def before(act: Scene) -> None:
        await act.send("a", timestamp=NOW_MS - deduplication.CLOCKS_APART_MS)

    async def after(act: Scene) -> None:
        assert await act.send("a") == 0

    play(before, disk=disk)
    play(after, disk=disk, later_ms=WINDOW_MS - 1)


def test_a_clock_ahead_of_the_broker_s_makes_no_id_last_for_longer_than_a_window_from_now() -> None:
    disk = LastingDisk()

    async def before(act: Scene) -> None:
        await act.send("a", timestamp=NOW_MS + 3_000_000)

    async def after(act: Scene) -> None:
        assert await act.send("a") == 0
        act.clock.now_ms += WINDOW_MS
        assert await act.send("a") == 1

    play(before, disk=disk)
    play(after, disk=disk)


def test_when_a_window_is_set_later_or_grows_what_the_log_holds_counts_too() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        await act.configure(dedup_window_ms="1000")
        assert await act.send("a") == 0
        await act.configure()
        assert len(act.node.dedup) == 0
        assert await act.send("a") == 1
        await act.configure(dedup_window_ms="1000")
        assert await act.send("a") == 0
        act.clock.now_ms += 1000
        assert await act.send("b") == 2
        assert act.node.dedup.of(act.partition).index.find(digest_of("a")) is None
        await act.configure(dedup_window_ms=str(WINDOW_MS))
        assert await act.send("a") == 0

    play(scene, dedup_window_ms="0")


def test_what_is_remembered_belongs_to_one_term() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        memory = act.node.dedup.of(act.partition)
        assert act.node.dedup.of(act.partition) is memory
        act.partition.term = Term(act.partition.term + 1)
        assert act.node.dedup.of(act.partition) is not memory
        assert await act.send("a") == 0

    play(scene)


def test_batches_that_came_by_another_way_are_read_before_the_next_is_judged() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        rows = [Record(0, NOW_MS, b"k", b"dead letter", ((NAME, b"b"),))]
        batch = memoryview(bytearray(build_batch(rows)))
        act.partition.append(batch, check_batch(batch))
        assert await act.send("b") == 1

    play(scene)


def test_a_batch_that_no_longer_parses_is_no_obstacle() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        batch = bytearray(build_batch([Record(0, NOW_MS, b"k", b"v", ())], compression=1))
        header = check_batch(batch)
        batch[65:] = bytes(len(batch) - 65)  # it says gzip, and is not
        act.partition.append(memoryview(batch), header)
        await act.configure(dedup_window_ms=str(WINDOW_MS))
        assert await act.send("a") == 0

    play(scene, dedup_window_ms="0")


def test_while_ids_are_read_back_producers_wait_and_nothing_overtakes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = LastingDisk()

    async def before(act: Scene) -> None:
        for number in range(50):
            await act.send(f"id {number}")

    async def after(act: Scene) -> None:
        await act.node.dedup.stop()  # what the start has begun
        monkeypatch.setattr(deduplication, "RECORDS_PER_TURN", 1)
        asked = act.ask("id 49", "new", producer_id=1, sequence=0)
        assert isawaitable(asked)
        assert act.line.held == 1
        assert len(act.stored()) == 50
        assert (await act.answer(asked)).base_offset == 50
        assert act.line.held == 0
        assert act.stored()[50:] == [(51, "new")]
        monkeypatch.undo()

    play(before, disk=disk)
    play(after, disk=disk)


def test_what_is_deleted_while_ids_are_read_back_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(act: Scene) -> None:
        for one in "abcdef":
            await act.send(one)
        await act.node.dedup.stop()
        monkeypatch.setattr(deduplication, "RECORDS_PER_TURN", 1)
        monkeypatch.setattr(deduplication, "READ_BYTES", 1)
        asked = act.ask("f")
        assert isawaitable(asked)
        act.partition.delete_records(Offset(4))
        assert (await act.answer(asked)).base_offset == 5

    play(scene)


def test_a_producer_whose_patience_ends_first_is_asked_to_come_back() -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        memory = act.node.dedup.of(act.partition)
        memory.loading = asyncio.get_running_loop().create_future()
        row = await act.answer(act.ask("b", timeout_ms=1))
        assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "reads message ids back" in (row.error_message or "")
        assert act.line.held == 0
        memory.stop()
        assert await act.send("b") == 1

    play(scene)


def test_the_other_partitions_of_a_request_do_not_wait_with_their_append() -> None:
    async def scene(act: Scene) -> None:
        await act.node.controller.create_topic("free", caller=BROKER)
        memory = act.node.dedup.of(act.partition)
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
            node=act.node, connection=act.line, caller=ANONYMOUS, api=PRODUCE, api_version=9
        )
        asked = produce(context, ProduceRequest(acks=1, timeout_ms=60_000, topic_data=rows))
        assert isawaitable(asked)
        assert act.node.leader("free", 0).log.end_offset == 1
        memory.stop()
        response = await asked
        assert response is not None
        answers = [topic.partition_responses[0] for topic in response.responses]
        assert [(one.error_code, one.base_offset) for one in answers] == [(0, 0), (0, 0)]

    play(scene)


def test_what_cannot_be_read_back_refuses_writes_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(act: Scene) -> None:
        await act.send("a")
        await act.node.dedup.stop()

        def rotten(*_: object, **__: object) -> bytes:
            raise CorruptLog("t-0/00.log", 7, "rot")

        with monkeypatch.context() as patched:
            patched.setattr(Log, "read", rotten)
            row = await act.answer(act.ask("a"))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "message ids cannot be read back" in (row.error_message or "")
        assert await act.send("a") == 0

    play(scene)


# --- one producer at a time


def test_a_second_producer_is_refused_until_the_first_one_s_connection_has_ended() -> None:
    async def scene(act: Scene) -> None:
        first, second = Line(), Line()
        await act.answer(act.ask("a", line=first))
        row = await act.answer(act.ask("b", line=second))
        assert row.error_code == ErrorCode.POLICY_VIOLATION
        assert "client 'tester' at 10.0.0.1:5000 has held it since 2023-11-14" in (row.error_message or "")
        assert len(act.stored()) == 1
        first.callbacks[0]()
        assert (await act.answer(act.ask("b", line=second))).error_code == ErrorCode.NONE

    play(scene, penstock_producer_exclusive="true", dedup_window_ms="0")


def test_who_could_not_write_has_not_taken_the_partition() -> None:
    async def scene(act: Scene) -> None:
        first, second = Line(), Line()
        refused = await act.answer(act.ask("x" * 257, line=first))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert (await act.answer(act.ask("b", line=second))).error_code == ErrorCode.NONE

    play(scene, penstock_producer_exclusive="true")
