"""Writes the markers of decided transactions to their partitions, wherever the leaders are.

Markers that are decided in one turn of the event loop and go to one node are one call. A marker that could not be
written is sent again after the pauses of the one retry policy, for as long as this node coordinates in the same term:
the next coordinator sends all markers of the transaction itself. A marker for a topic that was deleted counts as
written.

A node that has just begun to coordinate may not have heard of a topic that exists: a transaction would stay open there
for ever if its marker counted as written. So a topic counts as deleted only if this node has applied all that the
controller knew when it was asked.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.node.calls import BROKER, AtNode, Calls, LeaderOf, methods
from penstock.node.calls.messages.transactions import Marker, WriteMarkers
from penstock.node.calls.retry import CallRetry
from penstock.node.coordination.core_host import CoreHost
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.transactions import SendMarkers, TransactionCoordinator
from penstock.types import GroupId, NodeId, TopicPartition

log = logging.getLogger("penstock.transactions")

MARKERS_PER_CALL = 1_000
"""One marker takes about 70 bytes on the wire, and 30 µs on the leader's event loop."""

Host = CoreHost[TransactionCoordinator]


class _Unwritten:
    """A marker that one partition does not have yet, as far as its coordinator knows."""

    __slots__ = ("host", "message", "name", "retry")

    def __init__(self, host: Host, message: SendMarkers, name: TopicPartition, retry: CallRetry) -> None:
        self.host = host
        self.message = message
        self.name = name
        self.retry = retry

    def to_wire(self, group: GroupId, leader_term: int) -> Marker:
        producer = self.message.producer
        return Marker(
            group,
            leader_term,
            producer.producer_id,
            producer.epoch,
            self.message.commit,
            self.host.term,
            self.message.id,
        )


class MarkerSender:
    """Carries out the SendMarkers of all coordinators on this node."""

    def __init__(
        self, *, state: ClusterState, view: ClusterView, controller: Controller, calls: Calls
    ) -> None:
        self._state = state
        self._view = view
        self._controller = controller
        self._calls = calls
        self._unsent: list[_Unwritten] = []
        """Markers that are sent at the end of this turn of the loop."""
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, host: Host, message: object) -> None:
        """Writes these markers, and tells the core of each that is written. Returns at once."""
        assert isinstance(message, SendMarkers)
        retry = self._calls.retry()
        self._add([_Unwritten(host, message, name, retry) for name in sorted(message.partitions)])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _add(self, markers: list[_Unwritten]) -> None:
        if markers and not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._unsent.extend(markers)

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        unsent = [one for one in unsent if not one.host.is_stopped]
        unknown = [one for one in unsent if not self._exists(one.name)]
        known = [one for one in unsent if self._exists(one.name)] if unknown else unsent
        by_node, leaderless = self._calls.by_node(known, lambda one: LeaderOf(self._group(one.name)))
        for node, markers in by_node.items():
            for at in range(0, len(markers), MARKERS_PER_CALL):
                piece = [(one, self._marker(one)) for one in markers[at : at + MARKERS_PER_CALL]]
                self._start(self._write(node, piece))
        if leaderless:
            self._start(self._send_again(list(leaderless)))
        if unknown:
            self._start(self._check_deleted(unknown))

    def _group(self, name: TopicPartition) -> GroupId:
        return GroupId(self._state.topics[name.topic].topic_id, name.partition)

    def _marker(self, one: _Unwritten) -> Marker:
        topic = self._state.topics[one.name.topic]
        return one.to_wire(self._group(one.name), self._view.partition(topic, one.name.partition).term)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, node: NodeId, markers: list[tuple[_Unwritten, Marker]]) -> None:
        request = WriteMarkers([marker for _, marker in markers])
        try:
            response = await self._calls.ask(AtNode(node), methods.WRITE_MARKERS, request, caller=BROKER)
            codes = response.codes
        except KafkaError as problem:
            codes = [problem.code] * len(markers)
        written: list[_Unwritten] = []
        failed: list[_Unwritten] = []
        for (one, _), code in zip(markers, codes, strict=True):
            (written if _is_over(one, code) else failed).append(one)
        _report(written)
        if failed:
            await self._send_again(failed)

    async def _send_again(self, markers: list[_Unwritten]) -> None:
        """After the longest pause among them: those that just failed for the first time wait a little longer."""
        await asyncio.gather(*(retry.pause() for retry in {one.retry for one in markers}))
        self._add(markers)

    async def _check_deleted(self, markers: list[_Unwritten]) -> None:
        """Counts the markers of topics that do not exist as written."""
        try:
            await self._controller.catch_up()
        except (KafkaError, StorageError) as problem:
            log.info("cannot tell yet whether %s was deleted: %s", markers[0].name.topic, problem)
            await self._send_again(markers)
            return
        gone = [one for one in markers if not self._exists(one.name)]
        self._add([one for one in markers if self._exists(one.name)])
        _report(gone)

    def _exists(self, name: TopicPartition) -> bool:
        topic = self._state.topics.get(name.topic)
        return topic is not None and name.partition < topic.partitions


def _is_over(one: _Unwritten, code: int) -> bool:
    """Whether nothing is left to do. A partition that knows a higher epoch of the producer has had a marker with that
    epoch, and takes none of this one: to try again would leave the transaction undone for ever."""
    if code == ErrorCode.INVALID_PRODUCER_EPOCH:
        log.warning(
            "%s has a newer epoch of producer %s than the end of the transaction of %r",
            one.name,
            one.message.producer.producer_id,
            one.message.transactional_id,
        )
        return True
    return code == ErrorCode.NONE


def _report(written: Iterable[_Unwritten]) -> None:
    """Tells each coordinator, with one report for all partitions of a transaction."""
    partitions: dict[tuple[Host, str, int], list[TopicPartition]] = {}
    for one in written:
        message = one.message
        partitions.setdefault((one.host, message.transactional_id, message.id), []).append(one.name)
    for (host, transactional_id, markers_id), names in partitions.items():
        if not host.is_stopped:
            host.carry_out(host.core.markers_written(host.now_ms, transactional_id, markers_id, names))
