"""A durable core loads before it serves, is told of its commits in order, and is reloaded if its memory is wrong."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

import pytest

from penstock.cluster import topics
from penstock.config import Address, NodeConfig
from penstock.effects import Effect, Outbox
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.node import Node
from penstock.node.coordination import core_host
from penstock.node.coordination.core_host import Sender
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.replication.partition import Partition
from tests.log_records import own_records

TOPIC = "__counters"
PATIENCE_SECONDS = 20.0
Cores = DurableCores["Counter"]
Act = Callable[[Node, Cores], Coroutine[None, None, None]]


@pytest.fixture(autouse=True)
def _internal_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topics.INTERNAL_CONFIGS, TOPIC, {"cleanup.policy": "compact"})


class Counter:
    """Adds numbers under a key. Its memory is ahead of its log."""

    applies_early = True
    topics_version = -1

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.sums: dict[bytes, int] = {}
        self.is_loaded = False
        self.next_deadline_ms: int | None = None
        self.ticks: list[int] = []

    def add(self, token: object, key: bytes, number: int) -> list[Effect]:
        if number == 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing to add")
        total = self.sums[key] = self.sums.get(key, 0) + number

        def written(now_ms: int, ok: bool) -> None:
            failed = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not written")
            self.outbox.reply(token, total if ok else failed)

        self.outbox.persist([(key, b"%d" % total)], written)
        return self.outbox.take()

    def announce(self, message: str) -> list[Effect]:
        self.outbox.send(message)
        return self.outbox.take()

    def settled(self, token: object) -> list[Effect]:
        sums = dict(self.sums)
        self.outbox.persist([], lambda now_ms, ok: self.outbox.reply(token, sums))
        return self.outbox.take()

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.sums[key] = int(value or b"0")

    def loaded(self, now_ms: int) -> Iterable[Effect]:
        self.is_loaded = True
        return ()

    def tick(self, now_ms: int) -> Iterable[Effect]:
        self.next_deadline_ms = None
        self.ticks.append(now_ms)
        return ()

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> list[Effect]:
        self.outbox.persisted(now_ms, persist_id, ok)
        return self.outbox.take()


async def run(folder: Path, act: Act, send: Sender[Counter] | None = None) -> None:
    node = Node(NodeConfig(data_dir=str(folder), kafka=Address("127.0.0.1", 1)))
    await node.start()
    cores = DurableCores(
        TOPIC,
        Counter,
        partitions=1,
        metadata=node.metadata,
        controller=node.controller,
        view=node.view,
        clock=node.clock,
        send=send,
    )
    try:
        await cores.ensure_topic()
        cores.role_changed(node.leader(TOPIC, 0))
        await act(node, cores)
    finally:
        cores.stop()
        await node.stop()


async def add(cores: Cores, key: bytes, number: int) -> int:
    host = await cores.host_of("any")
    return await host.ask(int, lambda now_ms, token: host.core.add(token, key, number))


def code_of(cores: Cores, index: int = 0) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        cores.get(index)
    return refused.value.code


def test_the_next_core_has_the_state_of_the_last_one(tmp_path: Path) -> None:
    async def count(node: Node, cores: Cores) -> None:
        assert [await add(cores, b"a", 1), await add(cores, b"a", 2), await add(cores, b"b", 5)] == [1, 3, 5]

    async def look(node: Node, cores: Cores) -> None:
        assert cores.get(0).core.sums == {b"a": 3, b"b": 5}

    asyncio.run(run(tmp_path, count))
    asyncio.run(run(tmp_path, look))


def test_a_node_that_has_not_heard_of_the_topic_or_the_partition_says_so(tmp_path: Path) -> None:
    """Other nodes ask a node that has just started."""

    async def act(node: Node, cores: Cores) -> None:
        assert code_of(cores, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        cores.stop()
        cores._hosts.clear()
        del node.metadata.state.topics[TOPIC]  # type: ignore[attr-defined]
        assert code_of(cores) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(run(tmp_path, act))


def test_requests_of_one_turn_are_one_batch_and_answered_in_order(tmp_path: Path) -> None:
    async def act(node: Node, cores: Cores) -> None:
        partition = node.leader(TOPIC, 0)
        batches: list[int] = []
        append = partition.append
        monkeypatch.setattr(
            Partition, "append", lambda self, batch, header: batches.append(1) or append(batch, header)
        )
        assert await asyncio.gather(*(add(cores, b"a", 1) for _ in range(50))) == list(range(1, 51))
        assert len(batches) == 1

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(tmp_path, act))


def test_a_message_of_the_core_goes_to_the_sender_with_the_host_that_it_comes_from(tmp_path: Path) -> None:
    sent: list[tuple[object, object]] = []

    async def act(node: Node, cores: Cores) -> None:
        host = cores.get(0)
        host.tell(lambda now_ms: host.core.announce("news"))
        assert sent == [(host, "news")]

    asyncio.run(run(tmp_path, act, lambda host, message: sent.append((host, message))))


def test_a_refusal_of_the_core_reaches_its_caller(tmp_path: Path) -> None:
    async def act(node: Node, cores: Cores) -> None:
        with pytest.raises(KafkaError, match="nothing to add"):
            await add(cores, b"a", 0)

    asyncio.run(run(tmp_path, act))


def test_a_core_whose_write_was_refused_is_reloaded_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise StorageError("the disk is full")

    async def act(node: Node, cores: Cores) -> None:
        assert await add(cores, b"a", 1) == 1
        broken = cores.get(0)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append", refuse)
            with pytest.raises(KafkaError, match="not written"):
                await add(cores, b"a", 10)
        assert broken.core.sums == {b"a": 11}
        assert not broken.serves
        assert cores.get(0) is not broken
        assert await add(cores, b"a", 1) == 2

    asyncio.run(run(tmp_path, act))


def test_a_core_that_loads_again_reads_writes_that_are_not_committed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(node: Node, cores: Cores) -> None:
        host = cores.get(0)
        waiting = asyncio.ensure_future(add(cores, b"a", 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        host.is_broken = True
        assert cores.get(0).core.sums == {b"a": 1}
        with pytest.raises(KafkaError) as moved:
            await waiting
        assert moved.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(run(tmp_path, act))


def test_a_large_log_is_loaded_in_slices_and_clients_are_told_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(node: Node, cores: Cores) -> None:
        for number in range(1, 6):
            await add(cores, b"%d" % number, number)

    async def look(node: Node, cores: Cores) -> None:
        assert code_of(cores) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert not cores.all_online
        told: list[int] = []
        [host] = cores.hosts()
        host.tell(lambda now_ms: told.append(len(host.core.sums)) or ())
        assert told == []
        while not host.is_ready:
            assert not host.core.is_loaded
            await asyncio.sleep(0)
        assert cores.get(0) is host
        assert cores.all_online
        assert told == [5]

    asyncio.run(run(tmp_path, count))
    monkeypatch.setattr(core_host, "LOAD_AT_ONCE_BYTES", 0)
    monkeypatch.setattr(core_host, "RECORDS_PER_TURN", 1)
    asyncio.run(run(tmp_path, look))


def test_a_core_that_cannot_read_its_log_stays_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def count(node: Node, cores: Cores) -> None:
        host = cores.get(0)
        await add(cores, b"a", 1)
        host.core.outbox.persist([(b"a", b"not a number")], lambda now_ms, ok: None)
        host.carry_out(host.core.settled(host._loop.create_future()))
        await host.ask(dict, lambda now_ms, token: host.core.settled(token))

    async def look(node: Node, cores: Cores) -> None:
        assert code_of(cores) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not cores.all_online

    asyncio.run(run(tmp_path, count))
    asyncio.run(run(tmp_path, look))
    assert "stays offline" in caplog.text


@pytest.mark.parametrize("method", ["replay", "loaded"])
@pytest.mark.parametrize("load_at_once_bytes", [0, core_host.LOAD_AT_ONCE_BYTES])
def test_a_core_with_a_bug_in_loading_is_offline_and_not_loading_for_ever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    load_at_once_bytes: int,
) -> None:
    async def count(node: Node, cores: Cores) -> None:
        await add(cores, b"a", 1)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    async def look(node: Node, cores: Cores) -> None:
        [host] = cores.hosts()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not own_records(caplog):
                await asyncio.sleep(0)
        assert code_of(cores) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not host.is_ready
        monkeypatch.undo()
        cores.role_changed(node.leader(TOPIC, 0))
        assert cores.get(0).core.sums == {b"a": 1}

    asyncio.run(run(tmp_path, count))
    monkeypatch.setattr(core_host, "LOAD_AT_ONCE_BYTES", load_at_once_bytes)
    monkeypatch.setattr(Counter, method, fails)
    asyncio.run(run(tmp_path, look))
    (line,) = own_records(caplog)
    assert "stays offline" in line.getMessage()
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ZeroDivisionError)


def test_a_bug_in_one_change_that_a_loading_core_is_told_loses_no_other_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def count(node: Node, cores: Cores) -> None:
        await add(cores, b"a", 1)

    async def look(node: Node, cores: Cores) -> None:
        told: list[str] = []
        [host] = cores.hosts()

        def fails(now_ms: int) -> Iterable[Effect]:
            raise ZeroDivisionError

        host.tell(lambda now_ms: told.append("first") or ())
        host.tell(fails)
        host.tell(lambda now_ms: told.append("last") or ())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while host.is_loading:
                await asyncio.sleep(0)
        assert told == ["first", "last"]
        assert cores.get(0) is host
        assert await add(cores, b"a", 1) == 2

    asyncio.run(run(tmp_path, count))
    monkeypatch.setattr(core_host, "LOAD_AT_ONCE_BYTES", 0)
    asyncio.run(run(tmp_path, look))
    (line,) = own_records(caplog)
    assert line.getMessage().startswith(f"a bug in a change that the coordinator on {TOPIC}-0 is told")


def test_a_core_that_stays_offline_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(node: Node, cores: Cores) -> None:
        await add(cores, b"a", 1)

    def writes_and_fails(core: Counter, now_ms: int) -> Iterable[Effect]:
        core.outbox.persist([(b"a", b"99")], lambda now_ms, ok: None)
        yield from core.outbox.take()
        raise ZeroDivisionError

    async def look(node: Node, cores: Cores) -> None:
        [host] = cores.hosts()
        end_offset = host.partition.log.end_offset
        assert code_of(cores) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        for _ in range(3):
            await asyncio.sleep(0)
        await node.storage.flusher.drain()
        assert host.partition.log.end_offset == end_offset

    asyncio.run(run(tmp_path, count))
    monkeypatch.setattr(Counter, "loaded", writes_and_fails)
    asyncio.run(run(tmp_path, look))


@pytest.mark.parametrize("load_at_once_bytes", [0, core_host.LOAD_AT_ONCE_BYTES])
def test_a_core_that_stays_offline_keeps_no_changes_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_at_once_bytes: int
) -> None:
    async def count(node: Node, cores: Cores) -> None:
        await add(cores, b"a", 1)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    async def look(node: Node, cores: Cores) -> None:
        [host] = cores.hosts()
        host.tell(lambda now_ms: ())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while host.is_loading:
                await asyncio.sleep(0)
        host.tell(lambda now_ms: ())
        assert host._facts == []

    asyncio.run(run(tmp_path, count))
    monkeypatch.setattr(core_host, "LOAD_AT_ONCE_BYTES", load_at_once_bytes)
    monkeypatch.setattr(Counter, "replay", fails)
    asyncio.run(run(tmp_path, look))


def test_a_core_without_a_lease_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(node: Node, cores: Cores) -> None:
        monkeypatch.setattr(Partition, "may_serve", False)
        assert code_of(cores) is ErrorCode.NOT_COORDINATOR
        monkeypatch.undo()
        assert cores.get(0).serves

    asyncio.run(run(tmp_path, act))


def test_a_read_of_committed_state_waits_for_earlier_writes(tmp_path: Path) -> None:
    async def act(node: Node, cores: Cores) -> None:
        host = cores.get(0)
        added = asyncio.ensure_future(add(cores, b"a", 7))
        await asyncio.sleep(0)
        assert await host.ask(dict, lambda now_ms, token: host.core.settled(token)) == {b"a": 7}
        assert added.done()

    asyncio.run(run(tmp_path, act))


def test_a_core_is_called_at_its_deadline(tmp_path: Path) -> None:
    async def act(node: Node, cores: Cores) -> None:
        host = cores.get(0)
        due_ms = host.core.next_deadline_ms = host.now_ms + 20
        await add(cores, b"a", 1)
        while not host.core.ticks:
            await asyncio.sleep(0.001)
        assert host.core.ticks[0] >= due_ms

    asyncio.run(run(tmp_path, act))
