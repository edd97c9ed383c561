"""The coordinators of cliques: one `CliqueCoordinator` per partition of `__clique_state`, on the node that leads it.

A clique hashes to one partition. Any node is asked, and asks that partition's leader (`node.calls`).
"""

from penstock.cluster import CLIQUES_TOPIC, ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import Calls, LeaderOf, methods
from penstock.node.calls.messages.cliques import (
    AskTable,
    CliqueHeartbeat,
    DescribeClique,
    DescribedClique,
    ListCliques,
    ListedCliques,
    TableAnswer,
)
from penstock.node.coordination.core_host import CoreHost
from penstock.node.coordination.durable_cores import DurableCores
from penstock.ring import CliqueDescription, CliqueOutline, Heartbeat, HeartbeatReply, Table
from penstock.ring.coordinator import CliqueCoordinator
from penstock.types import Caller, GroupId

HEARTBEAT_WAIT_MS_MAX = 10_000
"""One request between nodes waits so long at most. The coordinator itself holds a heartbeat back for a quarter of its
lease, which is 2 s by default."""


class CliqueCoordinators:
    """Asks coordinators, and answers for the cliques that this node coordinates. Lives on the event loop."""

    def __init__(
        self,
        *,
        state: ClusterState,
        cores: DurableCores[CliqueCoordinator],
        calls: Calls,
    ) -> None:
        self.cores = cores
        self._state = state
        self._calls = calls
        calls.serve(methods.CLIQUE_HEARTBEAT, self._heartbeat)
        calls.serve(methods.CLIQUE_TABLE, self._table)
        calls.serve(methods.DESCRIBE_CLIQUE, self._describe)
        calls.serve(methods.LIST_CLIQUES, self._list)

    # --- asking

    async def heartbeat(
        self, clique: str, heartbeat: Heartbeat, wait_ms: int, *, caller: Caller
    ) -> HeartbeatReply:
        """The reply to a worker's heartbeat."""
        await self.cores.ensure_topic()
        request = CliqueHeartbeat(clique, heartbeat, min(wait_ms, HEARTBEAT_WAIT_MS_MAX))
        return await self._calls.ask(
            self._leader_of(clique), methods.CLIQUE_HEARTBEAT, request, caller=caller
        )

    async def table(self, clique: str, known_epoch: int, wait_ms: int, *, caller: Caller) -> Table | None:
        """The newest table; None if there is no such clique. If it is not newer than `known_epoch`, the answer comes
        after `wait_ms`."""
        request = AskTable(clique, known_epoch, wait_ms)
        answer = await self._calls.ask(self._leader_of(clique), methods.CLIQUE_TABLE, request, caller=caller)
        return answer.table

    async def describe(self, clique: str, *, caller: Caller) -> CliqueDescription | None:
        """None: there is no such clique. KafkaError if that cannot be known now."""
        if CLIQUES_TOPIC not in self._state.topics:
            return None
        request = DescribeClique(clique)
        answer = await self._calls.ask(
            self._leader_of(clique), methods.DESCRIBE_CLIQUE, request, caller=caller
        )
        return answer.description

    async def list(self, *, caller: Caller) -> list[CliqueOutline]:
        """All cliques, by name. KafkaError if a coordinator does not answer."""
        topic = self._state.topics.get(CLIQUES_TOPIC)
        found: list[CliqueOutline] = []
        for index in range(topic.partitions if topic is not None else 0):
            request = ListCliques(index)
            listed = await self._calls.ask(self._leader(index), methods.LIST_CLIQUES, request, caller=caller)
            found += listed.cliques
        return sorted(found, key=lambda one: one.clique)

    def _leader_of(self, clique: str) -> LeaderOf:
        return self._leader(self.cores.index_of(clique))

    def _leader(self, index: int) -> LeaderOf:
        return LeaderOf(GroupId(self._state.topics[CLIQUES_TOPIC].topic_id, index))

    # --- answering

    def _host(self, clique: str) -> CoreHost[CliqueCoordinator]:
        return self.cores.get(self.cores.index_of(clique))

    async def _heartbeat(self, caller: Caller, request: CliqueHeartbeat) -> HeartbeatReply:
        host = self._host(request.clique)
        return await host.ask(
            HeartbeatReply,
            lambda now_ms, token: host.core.heartbeat(
                now_ms, token, request.clique, request.heartbeat, request.wait_ms
            ),
        )

    async def _table(self, caller: Caller, request: AskTable) -> TableAnswer:
        host = self._host(request.clique)
        found = await host.ask(
            object,
            lambda now_ms, token: host.core.table(
                now_ms, token, request.clique, request.known_epoch, request.wait_ms
            ),
        )
        self.cores.check_serves(host)
        return TableAnswer(found if isinstance(found, Table) else None)

    def _describe(self, caller: Caller, request: DescribeClique) -> DescribedClique:
        host = self._host(request.clique)
        return DescribedClique(host.core.describe(host.now_ms, request.clique))

    def _list(self, caller: Caller, request: ListCliques) -> ListedCliques:
        topic = self._state.topics.get(CLIQUES_TOPIC)
        if topic is None or not 0 <= request.partition < topic.partitions:
            message = f"{CLIQUES_TOPIC} has no partition {request.partition} here"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        host = self.cores.get(request.partition)
        return ListedCliques(host.core.outlines())
