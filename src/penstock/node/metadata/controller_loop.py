"""The controller's periodic work: it fences nodes that are gone, and moves replicas. It acts only while this node leads
the metadata group.

Every decision is a pure function of the metadata and of the nodes that gossip sees (`penstock.cluster`); this module
calls these functions one after the other and commits their records.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from penstock.cluster import (
    ClusterState,
    MetadataRecord,
    MetadataVoters,
    MoveLimits,
    NodeTimeouts,
    Sightings,
    gone_nodes,
    next_moves,
    remove_empty_nodes,
    start_moves,
    still_possible,
    watch_nodes,
)
from penstock.cluster.quorum import metadata_voters
from penstock.config import ClusterSettings
from penstock.errors import PenstockError
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.metadata.planning import planned
from penstock.node.parts import Part
from penstock.raft import RaftRefused
from penstock.types import Replica

log = logging.getLogger("penstock.node")

ROUND_SECONDS = 0.25


class ControllerLoop(Part):
    """Runs the decisions while this node is the controller."""

    def __init__(
        self,
        *,
        me: Replica,
        metadata: MetadataLog,
        settings: ClusterSettings,
        seen: Callable[[], dict[int, int]],
    ) -> None:
        self._me = me
        self._metadata = metadata
        self._settings = settings
        self._seen = seen
        self._timeouts = NodeTimeouts(
            fence_after_ms=settings.fence_after_ms, replace_after_ms=settings.replace_after_ms
        )
        self._limits = MoveLimits(at_once=settings.max_moves)
        self._sightings: Sightings | None = None
        self._moves_looked_at: object = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                if self._metadata.is_controller:
                    await self._round()
                else:
                    self._sightings = None
            except (PenstockError, RaftRefused) as trouble:
                log.debug("controller: %s", trouble)
            except Exception:
                log.exception("a bug in the controller's round")

    async def _round(self) -> None:
        state = self._metadata.state
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if self._sightings is None:
            self._sightings = Sightings()
        seen = self._seen()
        alive = [node.node_id for node in state.nodes.values() if seen.get(node.node_id) == node.incarnation]
        unseen = self._sightings.see(now_ms, nodes=state.nodes, alive=[*alive, self._me.node])
        await self._decide(lambda now: watch_nodes(now, unseen, self._timeouts))
        gone = gone_nodes(state, unseen, self._timeouts)
        away = tuple(sorted(node for node, unseen_ms in unseen.items() if unseen_ms > 0))
        if self._moves_looked_at != (looked := (self._metadata.applied, tuple(sorted(gone)), away)):
            balance = self._settings.auto_rebalance
            plan = partial(next_moves, limits=self._limits, gone=gone, away=away, balance=balance)
            copy = state.copy()
            moves = await planned(copy, plan)
            await self._decide(lambda now: start_moves(now, still_possible(moves, copy, now)))
            self._moves_looked_at = looked
        await self._members(state, [*alive, self._me.node])
        voting = [voter.node for voter in self._voters()]
        await self._decide(lambda now: remove_empty_nodes(now, voting=voting))

    async def _decide(self, decide: Callable[[ClusterState], Sequence[MetadataRecord]]) -> None:
        if decide(self._metadata.state):
            for record in await self._metadata.change(decide):
                log.info("controller: %s", record)

    def _voters(self) -> tuple[Replica, ...]:
        config = self._metadata.partition.replica.group_config
        return () if config is None else config.voters

    async def _members(self, state: ClusterState, alive: Sequence[int]) -> None:
        """The voters of the metadata group; all other nodes follow it as learners."""
        consensus = self._metadata.partition.replica.consensus
        if not state.nodes:
            return
        voters = metadata_voters(state, self._voters(), alive)
        under_way = consensus.core.catching_up_for
        if under_way is not None and frozenset(under_way.voters) != frozenset(voters):
            # The node that was to become a voter is silent or leaves: another one need not wait for it.
            consensus.abandon_change()
        if consensus.core.changing:
            return
        if frozenset(voters) != frozenset(state.metadata_voters):
            record = MetadataVoters(voters=[(voter.node, voter.incarnation) for voter in voters])
            await self._metadata.change(lambda _: [record])
        nodes = {voter.node for voter in voters}
        learners = tuple(
            info.replica for node_id, info in sorted(state.nodes.items()) if node_id not in nodes
        )
        config = consensus.core.config
        assert config is not None
        if frozenset(config.voters) != frozenset(voters) or frozenset(config.learners) != frozenset(learners):
            consensus.change_config(voters, learners)
