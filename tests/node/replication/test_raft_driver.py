"""A replica whose Raft core stops in the middle of a decision takes no part any more; a core that refuses goes on."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import DiskFull, ErrorCode, KafkaError, ProtocolViolation, StorageError
from penstock.log.writer import LogWriter
from penstock.node import Node, Partition
from penstock.node.replication.raft_driver import RaftDriver
from penstock.raft import (
    AppendControl,
    BrokenPromise,
    ControlKind,
    HeartbeatFrame,
    PersistHardState,
    Raft,
    RaftRefused,
)
from penstock.raft.heartbeats import GroupHeartbeat, encode
from penstock.types import NodeId, Replica

PATIENCE_SECONDS = 20.0
LATER_TERM = 50
Act = Callable[[Node, Partition], None]


def run(act: Act) -> Partition:
    """The partition, after `act` and all flushes."""

    async def scenario() -> Partition:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=2)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        await node.storage.flusher.drain()
        partition = node.leader("t", 0)
        act(node, partition)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await node.storage.raft.hard_states.drain()
            await node.storage.flusher.drain()
            await node.stop()
        return partition

    return asyncio.run(scenario())


def tick(driver: RaftDriver) -> None:
    driver.tick()


def save_vote(driver: RaftDriver) -> None:
    driver.carry_out([PersistHardState(driver.core.hard, [])])


def write_on_a_full_disk(driver: RaftDriver) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogWriter, "append_control", full)
        driver.carry_out([AppendControl(ControlKind.CONFIG, b"")])


@pytest.mark.parametrize(
    ("method", "ask"),
    [("tick", tick), ("hard_state_saved", save_vote), ("write_failed", write_on_a_full_disk)],
)
def test_a_bug_in_a_decision_takes_the_replica_offline(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    ask: Callable[[RaftDriver], None],
) -> None:
    def act(node: Node, partition: Partition) -> None:
        driver = partition.replica.consensus
        original = getattr(Raft, method)

        def fails(core: Raft, *args: object) -> object:
            if core is driver.core:
                raise ZeroDivisionError
            return original(core, *args)

        monkeypatch.setattr(Raft, method, fails)
        ask(driver)

    partition = run(act)
    assert str(partition.offline_reason) == "the group's decision broke off: ZeroDivisionError()"
    [bug] = [line for line in caplog.records if line.exc_info is not None]
    assert bug.getMessage() == "t-0: a bug"


def test_appends_that_wait_for_a_decision_with_a_bug_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[asyncio.Future[None] | None] = []

    def act(node: Node, partition: Partition) -> None:
        def fails(core: Raft, now: float) -> object:
            raise ZeroDivisionError

        batch = memoryview(bytearray(build_batch([Record(0, 0, None, b"x", ())])))
        waiting.append(partition.committed_at(partition.append(batch, check_batch(batch))))
        monkeypatch.setattr(Raft, "tick", fails)
        partition.replica.consensus.tick()
        with pytest.raises(KafkaError) as refused:
            partition.append(batch, check_batch(batch))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    run(act)
    [committed] = waiting
    assert committed is not None
    assert isinstance(committed.exception(), StorageError)


def test_a_refusal_of_the_core_reaches_the_caller_and_the_replica_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(core: Raft, now: float) -> object:
        raise StorageError("read a segment: Input/output error")

    def act(node: Node, partition: Partition) -> None:
        driver = partition.replica.consensus
        with pytest.raises(RaftRefused):
            driver.transfer(Replica(NodeId(99), 99))
        with pytest.raises(ProtocolViolation):
            driver.change_config(())
        with monkeypatch.context() as patch:
            patch.setattr(Raft, "tick", unreadable)
            with pytest.raises(StorageError):
                driver.tick()
        assert partition.offline_reason is None
        assert partition.serves

    assert run(act).offline_reason is None


PEER = Replica(NodeId(9), 9)


class PeerIsConnected:
    """A transport with one peer, which drops what is sent to it."""

    def connected(self) -> dict[NodeId, Any]:
        return {PEER.node: SimpleNamespace(node=PEER.node, replica=PEER)}

    def send(self, to: NodeId, kind: int, body: object) -> bool:
        return False


def heartbeat_of_a_later_term(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """For both partitions."""
    monkeypatch.setattr(node.storage.raft, "transport", PeerIsConnected())
    rows = [GroupHeartbeat(node.leader("t", index).group, LATER_TERM, 0, 0) for index in (0, 1)]
    frame = HeartbeatFrame(1, 1, True, rows, [])
    node.storage.raft.on_heartbeat(PEER.node, memoryview(encode(frame)))


def step_heartbeat(failing: RaftDriver, problem: Exception) -> Callable[..., object]:
    original = Raft.step_heartbeat

    def fails(core: Raft, *args: Any) -> object:
        if core is failing.core:
            raise problem
        return original(core, *args)

    return fails


@pytest.mark.parametrize("problem", [BrokenPromise("both lead in term 50"), ZeroDivisionError("oh")])
def test_a_heartbeat_that_breaks_one_group_takes_its_replica_offline_and_counts_for_the_others(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    others: list[Partition] = []

    def act(node: Node, partition: Partition) -> None:
        others.append(node.leader("t", 1))
        monkeypatch.setattr(Raft, "step_heartbeat", step_heartbeat(partition.replica.consensus, problem))
        heartbeat_of_a_later_term(node, monkeypatch)

    assert str(problem) in str(run(act).offline_reason)
    [other] = others
    assert other.offline_reason is None
    assert other.replica.consensus.core.saved.term == LATER_TERM


def test_a_heartbeat_that_is_malformed_for_one_group_counts_for_the_others_and_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others: list[Partition] = []

    def act(node: Node, partition: Partition) -> None:
        others.append(node.leader("t", 1))
        problem = ProtocolViolation("term 2^63")
        monkeypatch.setattr(Raft, "step_heartbeat", step_heartbeat(partition.replica.consensus, problem))
        with pytest.raises(ProtocolViolation):
            heartbeat_of_a_later_term(node, monkeypatch)

    assert run(act).offline_reason is None
    [other] = others
    assert other.replica.consensus.core.saved.term == LATER_TERM
