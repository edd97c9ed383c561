"""Work that a node repeats in the background goes on after a bug in one round, which is logged."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from uuid import uuid4

import pytest

from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.node import Node, Partition, housekeeping
from penstock.node.access import first_user
from penstock.node.access.first_user import FirstUser
from penstock.node.cliques import tables
from penstock.node.cliques.coordinators import CliqueCoordinators
from penstock.node.cliques.tables import CliqueTables
from penstock.node.housekeeping import Housekeeping
from penstock.node.replication import reconciler
from penstock.node.replication.reconciler import ReplicaReconciler
from penstock.node.replication.repair import ReplicaRepair
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.workers import Workers
from penstock.node.status import samples
from penstock.node.status.samples import Samples
from penstock.node.subscriptions import SubscribeRequest, manager
from penstock.node.subscriptions.manager import SubscriptionManager
from penstock.types import Replica
from tests.node.subscriptions.test_subscriptions import FakeReader, PlainEncoder

PATIENCE_SECONDS = 20.0
SOON_SECONDS = 0.01


class Faulty:
    """Fails in its first two calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_called_again = asyncio.Event()

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls <= 2:
            raise ZeroDivisionError
        self.is_called_again.set()

    async def call(self, *_: object) -> None:
        self()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.is_called_again.wait()


def play(scenario: Callable[[Node, Faulty], Awaitable[None]], caplog: pytest.LogCaptureFixture) -> None:
    """Runs a scenario, in which two calls fail, on a node with a topic."""

    async def run() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=1)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        try:
            await scenario(node, Faulty())
        finally:
            await node.stop()

    asyncio.run(run())
    bugs = [line for line in caplog.records if line.exc_info is not None]
    assert [type(line.exc_info[1]) for line in bugs if line.exc_info] == [ZeroDivisionError] * 2
    assert all(line.getMessage().endswith("; the rest goes on") for line in bugs)


def test_retention(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(housekeeping, "ROUND_SECONDS", SOON_SECONDS)

    async def scenario(node: Node, faulty: Faulty) -> None:
        workers = Workers()

        async def shorten(partitions: Sequence[Partition]) -> list[Partition]:
            return [node.leader("t", 0)]

        keeping = Housekeeping(
            node.partitions, workers, node.clock, node.metrics, retain_undone=shorten, shortened=faulty
        )
        await keeping.start()
        await faulty.wait()
        await keeping.stop()
        workers.stop()

    play(scenario, caplog)


def test_the_repair_of_replicas(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(reconciler, "ROUND_SECONDS", SOON_SECONDS)

    async def scenario(node: Node, faulty: Faulty) -> None:
        monkeypatch.setattr(ReplicaRepair, "look", faulty)
        reconciling = ReplicaReconciler(
            me=Replica(node.node_id, 1),
            state=node.metadata.state,
            partitions=node.partitions,
            controller=node.controller,
            announcer=None,  # type: ignore[arg-type]
            alive=tuple,
            hands_over=False,
        )
        await reconciling.start()
        await faulty.wait()
        await reconciling.stop()

    play(scenario, caplog)


def test_samples(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(samples, "SAMPLE_MS", 10)

    async def scenario(node: Node, faulty: Faulty) -> None:
        sampling = next(part for part in node.parts._parts if isinstance(part, Samples))
        monkeypatch.setattr(sampling, "take", faulty.call)
        await faulty.wait()

    play(scenario, caplog)


def test_checks_of_subscriptions(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(manager, "CHECK_SECONDS", SOON_SECONDS)

    async def scenario(node: Node, faulty: Faulty) -> None:
        subscriptions = SubscriptionManager(node, FakeReader())
        monkeypatch.setattr(subscriptions, "_check", faulty)
        request = SubscribeRequest(name="s", topics=("t",), encoder=PlainEncoder())
        session, _ = await subscriptions.attach(request)
        await faulty.wait()
        await subscriptions.detach(session)

    play(scenario, caplog)


def test_following_the_table_of_a_clique(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "PAUSE_SECONDS", SOON_SECONDS)

    async def scenario(node: Node, faulty: Faulty) -> None:
        class Coordinators:
            async def table(self, *_: object, **__: object) -> None:
                faulty()

        following = CliqueTables(cast(CliqueCoordinators, Coordinators()), node.queues.manager)
        watch = following.watch("pricing", lambda: None)
        await faulty.wait()
        watch.close()
        await following.stop()

    play(scenario, caplog)


def test_making_the_first_user(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(first_user, "LOOK_SECONDS", SOON_SECONDS)

    async def scenario(node: Node, faulty: Faulty) -> None:
        monkeypatch.setattr(FirstUser, "_make", faulty.call)
        making = FirstUser(node.metadata, {}, lambda user, password: None)
        task = asyncio.ensure_future(making._wait())
        await faulty.wait()
        task.cancel()

    play(scenario, caplog)


def test_a_guarded_task_can_be_cancelled() -> None:
    async def scenario() -> None:
        async def work() -> None:
            with logged_bugs("work"):
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scenario())
