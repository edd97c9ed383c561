"""Reading for many subscribers: shared reads, limits, and errors."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import retry
from penstock.node.calls.retry import CallRetry, ClusterChanges
from penstock.node.subscriptions import BatchesRead, Bounds, page_reader
from penstock.node.subscriptions.page_reader import PageKey, PageReader, Source
from penstock.node.subscriptions.pages import FRAME_BYTES, Page, open_page
from penstock.node.subscriptions.values import FAILED, GONE, ReadOutcome, Rows
from penstock.types import Isolation, TopicPartition

KEY = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
SOURCE = Source(KEY, TOPIC_ID)


class PlainEncoder:
    keeps_batches = False

    def __init__(self) -> None:
        self.bodies_made = 0
        self.frames_made = 0

    def body(self, key: TopicPartition, record: Record) -> bytes:
        self.bodies_made += 1
        return record.value or b""

    def frame(self, page: Rows, rows: Sequence[int]) -> bytes:
        self.frames_made += 1
        return b"|".join(page.bodies[row] for row in rows)


class BrokenEncoder(PlainEncoder):
    def body(self, key: TopicPartition, record: Record) -> bytes:
        raise ZeroDivisionError


class FakeReader:
    """A partition in memory. `appended` wakes waiting reads."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = 0
        self.reads = 0
        self.waiting = 0
        self.trouble: list[KafkaError] = []
        self.bounds_trouble: list[KafkaError] = []
        self._grown = asyncio.Event()

    def append(self, *values: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        first = self.batches[-1][1] if self.batches else 0
        records = [
            Record(first + index, 1_000, None, value, tuple(headers)) for index, value in enumerate(values)
        ]
        self.batches.append((first, first + len(values), bytes(build_batch(records))))
        self._grown.set()
        self._grown = asyncio.Event()

    async def read(
        self, key: TopicPartition, offset: int, *, max_bytes: int, wait_ms: int, isolation: Isolation
    ) -> BatchesRead:
        self.reads += 1
        if self.trouble:
            raise self.trouble.pop(0)
        if offset < self.start:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "deleted")
        if wait_ms and not self._from(offset, max_bytes):
            self.waiting += 1
            await self._grown.wait()
            self.waiting -= 1
        return BatchesRead(self._from(offset, max_bytes))

    def _from(self, offset: int, max_bytes: int) -> bytes:
        found = b""
        for _, end, data in self.batches:
            if end > offset and (not found or len(found) + len(data) <= max_bytes):
                found += data
        return found

    async def bounds(
        self, topic: str, partitions: Sequence[int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, Bounds]:
        if self.bounds_trouble:
            raise self.bounds_trouble.pop(0)
        return dict.fromkeys(partitions, Bounds(self.start, self.batches[-1][1] if self.batches else 0))

    async def ends_of_terms(self, topic: str, terms: Mapping[int, int]) -> Mapping[int, int]:
        return dict.fromkeys(terms, -1)


class ReaderHarness:
    def __init__(self, cache_bytes: int = page_reader.CACHE_BYTES) -> None:
        self.reader = FakeReader()
        self.encoder = PlainEncoder()
        self.topic_id: UUID | None = TOPIC_ID
        self.page_reader = PageReader(
            self.reader, lambda _: self.topic_id, lambda: CallRetry(ClusterChanges()), cache_bytes
        )

    async def page(self, offset: int) -> Page | ReadOutcome:
        future: asyncio.Future[Page | ReadOutcome] = asyncio.get_running_loop().create_future()
        self.page_reader.request(PageKey(SOURCE, self.encoder, offset), future.set_result)
        return await asyncio.wait_for(future, 30)

    async def until(self, question: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not question():
                await asyncio.sleep(0)


def run_with_reader(scenario: Callable[[ReaderHarness], Coroutine[Any, Any, None]], **settings: int) -> None:
    async def play() -> None:
        await scenario(ReaderHarness(**settings))

    asyncio.run(play())


def test_a_thousand_waiting_subscribers_at_one_offset_cost_one_read_and_one_encoding() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        came: list[Page | ReadOutcome] = []
        for _ in range(1000):
            harness.page_reader.request(PageKey(SOURCE, harness.encoder, 0), came.append)
        await harness.until(lambda: harness.reader.waiting == 1)
        harness.reader.append(b"a", b"b")
        await harness.until(lambda: len(came) == 1000)
        [page] = set(came)
        assert isinstance(page, Page)
        frames = {page.frame(harness.encoder, [0, 1]) for _ in came}
        assert frames == {b"a|b"}
        assert (harness.page_reader.reads, harness.encoder.bodies_made, harness.encoder.frames_made) == (
            1,
            2,
            1,
        )

    run_with_reader(scenario)


def test_a_page_is_cached_for_later_requests() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"a")
        page = await harness.page(0)
        assert harness.page_reader.get(PageKey(SOURCE, harness.encoder, 0)) is page
        assert harness.page_reader.get(PageKey(SOURCE, harness.encoder, 1)) is None

    run_with_reader(scenario)


def test_the_cache_drops_the_least_recently_used_page_and_is_bounded() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        for _ in range(5):
            harness.reader.append(bytes(40_000))
        for offset in range(4):
            await harness.page(offset)
            harness.page_reader.get(PageKey(SOURCE, harness.encoder, 0))
            assert harness.page_reader.cached_bytes <= 100_000
        assert harness.page_reader.get(PageKey(SOURCE, harness.encoder, 0)) is not None
        assert harness.page_reader.get(PageKey(SOURCE, harness.encoder, 1)) is None

    run_with_reader(scenario, cache_bytes=100_000)


def test_single_messages_of_one_batch_come_from_the_page_of_the_first() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(*[b"%d" % number for number in range(500)])
        harness.reader.append(b"another batch")
        future: asyncio.Future[Page | ReadOutcome] = asyncio.get_running_loop().create_future()
        harness.page_reader.request(PageKey(SOURCE, harness.encoder, 250, single=True), future.set_result)
        page = await future
        for offset in (0, 250, 499):
            assert harness.page_reader.get(PageKey(SOURCE, harness.encoder, offset, single=True)) is page
        assert harness.page_reader.get(PageKey(SOURCE, harness.encoder, 500, single=True)) is None
        assert (
            harness.page_reader.get(PageKey(Source(KEY, UUID(int=9)), harness.encoder, 250, single=True))
            is None
        )
        assert harness.encoder.bodies_made == 500

    run_with_reader(scenario)


def test_reading_stops_without_waiting_requests() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        wants = [
            harness.page_reader.request(PageKey(SOURCE, harness.encoder, 0), lambda _: None) for _ in range(2)
        ]
        await harness.until(lambda: harness.reader.waiting == 1)
        wants[0].cancel()
        assert len(asyncio.all_tasks()) == 2  # this one and the reading one
        wants[1].cancel()
        await harness.until(lambda: len(asyncio.all_tasks()) == 1)
        harness.reader.append(b"a")
        assert isinstance(await harness.page(0), Page)  # the next request is served

    run_with_reader(scenario)


def test_an_unavailable_leader_is_asked_again() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"a")
        harness.reader.trouble = [KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "an election")]
        assert isinstance(await harness.page(0), Page)

    run_with_reader(scenario)


def test_a_read_of_deleted_records_returns_the_log_start() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"a", b"b", b"c")
        harness.reader.start = 2
        assert await harness.page(0) == ReadOutcome(start=2)

    run_with_reader(scenario)


def test_a_leader_that_is_gone_when_it_is_asked_for_the_log_start_is_asked_again() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"a", b"b", b"c")
        harness.reader.start = 2
        harness.reader.bounds_trouble = [KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "an election")]
        assert await harness.page(0) == ReadOutcome(start=2)

    run_with_reader(scenario)


def test_a_leader_that_is_gone_for_longer_than_a_request_looks_for_it_is_still_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)

    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"a")
        harness.reader.trouble = [KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "an election")] * 5
        assert isinstance(await harness.page(0), Page)

    run_with_reader(scenario)


def test_a_bug_in_reading_reaches_the_waiting_requests(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.encoder = BrokenEncoder()
        harness.reader.append(b"a")
        assert await harness.page(0) is FAILED

    run_with_reader(scenario)
    assert "ZeroDivisionError" in caplog.text


def test_a_recreated_topic_is_another_topic() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"a")
        harness.topic_id = UUID(int=8)
        assert await harness.page(0) == GONE

    run_with_reader(scenario)


def test_records_read_during_a_recreation_do_not_count_for_the_old_topic() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        page = asyncio.get_running_loop().create_task(harness.page(0))
        await harness.until(lambda: harness.reader.waiting == 1)
        harness.topic_id = UUID(int=8)
        harness.reader.append(b"of the new one")
        assert await page == GONE
        assert harness.page_reader.cached_bytes == 0

    run_with_reader(scenario)


def test_an_unreadable_batch_ends_the_page_before_it_and_is_then_skipped() -> None:
    good = bytes(build_batch([Record(0, 1_000, None, b"good")]))
    bad = bytearray(build_batch([Record(1, 1_000, None, b"bad"), Record(2, 1_000, None, b"bad")]))
    bad[-1] ^= 0xFF
    encoder = PlainEncoder()
    page = open_page(KEY, BatchesRead(good + bytes(bad)), 0, encoder)
    assert isinstance(page, Page)
    assert (page.offsets, page.end) == ([0], 1)
    outcome = open_page(KEY, BatchesRead(bytes(bad)), 1, encoder)
    assert isinstance(outcome, ReadOutcome)
    assert outcome.unreadable_to == 3
    assert outcome.reason


def test_frames_are_limited_in_size_and_have_at_least_one_message() -> None:
    sizes = [100, FRAME_BYTES * 2, 100, FRAME_BYTES // 2, FRAME_BYTES // 2, 100]
    records = [Record(offset, 1_000, None, bytes(size)) for offset, size in enumerate(sizes)]
    page = open_page(KEY, BatchesRead(bytes(build_batch(records))), 0, PlainEncoder())
    assert isinstance(page, Page)
    row, frames = 0, []
    while row < len(sizes):
        end = page.cut_after(row)
        frames.append(list(range(row, end)))
        row = end
    assert [row for frame in frames for row in frame] == list(range(len(sizes)))
    assert all(sum(sizes[row] for row in frame) <= FRAME_BYTES or len(frame) == 1 for frame in frames)


def test_a_page_knows_the_delay_and_expiry_of_its_records() -> None:
    async def scenario(harness: ReaderHarness) -> None:
        harness.reader.append(b"plain")
        harness.reader.append(b"later", headers=[("penstock-delay-ms", b"500"), ("penstock-ttl-ms", b"70")])
        page = await harness.page(0)
        assert isinstance(page, Page)
        assert page.times == {1: (1_500, 1_570)}

    run_with_reader(scenario)
