"""Waits until clients can use partitions that were just created: they have leaders, and the nodes know it.

A partition of a cluster elects its leader after the metadata that creates it was committed, which takes some hundred
milliseconds; each node then hears from the leader. A client that asked any node in between would hear
LEADER_NOT_AVAILABLE, or that there is no such topic, right after it was told that its topic exists. So the controller
answers when all nodes know all leaders.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from penstock.cluster import ClusterState
from penstock.node.calls import BROKER, Calls, methods
from penstock.node.calls.messages.controller import AwaitLeaders, NewPartitions
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.replication.leaders import NO_LEADER
from penstock.types import Caller

LEADERS_WITHIN_SECONDS = 5.0
"""The partitions exist in any case, so a node that hangs, or replicas without a majority, only delay the response. It
must come before the node that forwarded the request gives up (`methods.ANSWER_MS`)."""


class NewPartitionWaits:
    """Asks the nodes, and answers for this one."""

    def __init__(self, *, state: ClusterState, view: ClusterView, calls: Calls, is_alone: bool) -> None:
        self._state = state
        self._view = view
        self._calls = calls
        self._is_alone = is_alone
        calls.serve(methods.AWAIT_LEADERS, self._await_leaders)

    async def known_everywhere(self, topics: Iterable[str], within_s: float) -> None:
        """Returns when all nodes that clients are sent to know a leader of each partition of these topics, or after
        this time, or when the topics are deleted. A node without a cluster leads its partitions as soon as they are
        open."""
        wanted = self._wanted(topics)
        if self._is_alone or not wanted:
            return
        within_s = min(within_s, LEADERS_WITHIN_SECONDS)
        nodes = [broker.node_id for broker in self._view.brokers()]
        request = AwaitLeaders(wanted, int(within_s * 1000))
        asked = asyncio.ensure_future(
            self._calls.ask_nodes(nodes, methods.AWAIT_LEADERS, request, caller=BROKER)
        )
        gone = asyncio.ensure_future(self._deleted(wanted))
        try:
            await asyncio.wait({asked, gone}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            gone.cancel()

    async def _deleted(self, topics: Iterable[NewPartitions]) -> None:
        """Returns when none of these topics exists any more. The nodes cannot tell that from "not created here yet"."""
        while any(self._state.topic_by_id(topic.topic_id) is not None for topic in topics):
            await self._calls.next_change()

    async def known_here(self, topic: str, within_s: float) -> None:
        """The same for this node alone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._wait(self._wanted([topic]))

    def _wanted(self, topics: Iterable[str]) -> list[NewPartitions]:
        found = (self._state.topics[name] for name in topics if name in self._state.topics)
        return [NewPartitions(topic.topic_id, topic.partitions) for topic in found]

    async def _await_leaders(self, caller: Caller, request: AwaitLeaders) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(request.within_ms / 1000, LEADERS_WITHIN_SECONDS)):
                await self._wait(request.topics)

    async def _wait(self, topics: Iterable[NewPartitions]) -> None:
        for topic in topics:
            for index in range(topic.partitions):
                while not self._is_led(topic, index):
                    await self._calls.next_change()

    def _is_led(self, wanted: NewPartitions, index: int) -> bool:
        topic = self._state.topic_by_id(wanted.topic_id)
        if topic is None or index >= topic.partitions:
            return False
        return self._view.partition(topic, index).leader != NO_LEADER
