"""What a node asks the coordinators of cliques."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from penstock.cluster import CLIQUES_TOPIC, ClusterState
from penstock.node.calls import Calls, LeaderOf
from penstock.node.calls.messages.cliques import CliqueHeartbeat
from penstock.node.cliques.coordinators import HEARTBEAT_WAIT_MS_MAX, CliqueCoordinators
from penstock.node.coordination.durable_cores import DurableCores
from penstock.ring import Heartbeat, HeartbeatReply, HeartbeatStatus
from penstock.ring.coordinator import CliqueCoordinator
from penstock.types import ANONYMOUS


class FakeCalls:
    """Answers heartbeats."""

    def __init__(self) -> None:
        self.asked: list[tuple[LeaderOf, CliqueHeartbeat]] = []

    def serve(self, method: Any, handler: Any) -> None: ...

    async def ask(self, target: LeaderOf, method: Any, request: Any, *, caller: Any) -> Any:
        self.asked.append((target, request))
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


def test_one_request_between_nodes_holds_a_heartbeat_back_for_a_bounded_time() -> None:
    async def scenario() -> list[int]:
        calls = FakeCalls()
        asked = coordinators(calls)
        heartbeat = Heartbeat(worker="one", member_id="m", sequence=1)
        for wait_ms in (0, 5_000, 99_000):
            await asked.heartbeat("pricing", heartbeat, wait_ms, caller=ANONYMOUS)
        assert all(target.group.partition == 3 for target, _ in calls.asked)
        return [request.wait_ms for _, request in calls.asked]

    assert asyncio.run(scenario()) == [0, 5_000, HEARTBEAT_WAIT_MS_MAX]
