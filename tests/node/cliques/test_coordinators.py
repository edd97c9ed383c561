"""What a node asks the coordinators of cliques."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from penstock.cluster import CLIQUES_TOPIC, ClusterState
from penstock.node.calls import Calls, LeaderOf
from penstock.node.cliques.coordinators import HEARTBEAT_WAIT_MS_MAX, CliqueCoordinators
from penstock.node.coordination.durable_cores import DurableCores
from penstock.ring import Heartbeat, HeartbeatReply, HeartbeatStatus
from penstock.ring.coordinator import CliqueCoordinator
from penstock.types import ANONYMOUS


class FakeCalls:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[LeaderOf, Any, int]] = []
        self.may_answer = asyncio.Event()
        self.waiting = 0

    def serve(self, method: Any, handler: Any) -> None: ...

    def may_wait(self, target: LeaderOf) -> bool:
        return self.waiting < 2

    async def ask(self, target: LeaderOf, method: Any, request: Any, *, caller: Any, wait_ms: int = 0) -> Any:
        self.asked.append((target, request, wait_ms))
        if wait_ms:
            self.waiting += 1
            await self.may_answer.wait()
            self.waiting -= 1
        return HeartbeatReply(status=HeartbeatStatus.OK, sequence=1, epoch=1, lease_ms=8_000)


class FakeCores:
    async def ensure_topic(self) -> None: ...

    def index_of(self, clique: str) -> int:
        return 3


def coordinators(calls: FakeCalls) -> CliqueCoordinators:
    topics = {CLIQUES_TOPIC: SimpleNamespace(topic_id=UUID(int=7), partitions=8)}
    return CliqueCoordinators(
        state=cast(ClusterState, SimpleNamespace(topics=topics)),
        cores=cast(DurableCores[CliqueCoordinator], FakeCores()),
        calls=cast(Calls, calls),
    )


def test_heartbeats_are_answered_at_once_when_too_many_wait() -> None:
    async def scenario() -> list[int]:
        calls = FakeCalls()
        asked = coordinators(calls)
        heartbeat = Heartbeat(worker="one", member_id="m", sequence=1)
        waiting = [
            asyncio.ensure_future(asked.heartbeat("pricing", heartbeat, wait_ms, caller=ANONYMOUS))
            for wait_ms in (5_000, 99_000, 5_000)
        ]
        await waiting[2]
        calls.may_answer.set()
        await asyncio.gather(*waiting)
        await asked.heartbeat("pricing", heartbeat, 5_000, caller=ANONYMOUS)
        assert all(target.group.partition == 3 for target, _, _ in calls.asked)
        assert [wait for _, _, wait in calls.asked] == [request.wait_ms for _, request, _ in calls.asked]
        return [wait for _, _, wait in calls.asked]

    assert asyncio.run(scenario()) == [5_000, HEARTBEAT_WAIT_MS_MAX, 0, 5_000]
