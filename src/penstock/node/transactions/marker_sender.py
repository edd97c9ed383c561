"""Writes the markers of decided transactions to their partitions, wherever the leaders are.

Markers that are decided in one turn of the event loop and go to one node are one call. A marker that could not be
written is sent again after the pauses of the one retry policy, for as long as this node coordinates in the same term:
the next coordinator sends all markers of the transaction itself. A marker for a topic that was deleted counts as
written. After a bug, too, markers are sent again: without them, the transaction would stay open until the next
coordinator. Such a bug probably strikes again, so these pauses are those of background work.

A node that has just begun to coordinate may not have heard of a topic that exists: a transaction would stay open there
for ever if its marker counted as written. So a topic counts as deleted only if this node has applied all that the
controller knew when it was asked.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.node.calls import BROKER, AtNode, Calls, LeaderOf, methods
from penstock.node.calls.messages.transactions import Marker, WriteMarkers
from penstock.node.calls.retry import CallRetry
from penstock.node.coordination.core_host import CoreHost
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.retry_backoff import RetryBackoff
from penstock.transactions import SendMarkers, TransactionCoordinator
from penstock.types import GroupId, NodeId, TopicPartition

log = logging.getLogger("penstock.transactions")

MARKERS_PER_CALL = 1_000
"""One marker takes about 70 bytes on the wire, and 30 µs on the leader's event loop."""

Host = CoreHost[TransactionCoordinator]


class _Unwritten:
    """A marker that one partition does not have yet, as far as its coordinator knows."""

    __slots__ = ("backoff", "host", "message", "name", "retry")

    def __init__(
        self,
        host: Host,
        message: SendMarkers,
        name: TopicPartition,
        *,
        retry: CallRetry,
        backoff: RetryBackoff,
    ) -> None:
        """The pauses before it is sent again: `retry` if it could not be written, `backoff` after a bug."""
        self.host = host
        self.message = message
        self.name = name
        self.retry = retry
        self.backoff = backoff

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
        retry, backoff = self._calls.retry(), RetryBackoff("markers", log)
        self._add(
            [
                _Unwritten(host, message, name, retry=retry, backoff=backoff)
                for name in sorted(message.partitions)
            ]
        )

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
        with self._sent_again_after_bugs(unsent):
            self._distribute(unsent)

    def _distribute(self, unsent: list[_Unwritten]) -> None:
        unknown = [one for one in unsent if not self._exists(one.name)]
        known = [one for one in unsent if self._exists(one.name)] if unknown else unsent
        by_node, leaderless = self._calls.by_node(known, lambda one: LeaderOf(self._group(one.name)))
        pieces = [
            (node, [(one, self._marker(one)) for one in markers[at : at + MARKERS_PER_CALL]])
            for node, markers in by_node.items()
            for at in range(0, len(markers), MARKERS_PER_CALL)
        ]
        for node, piece in pieces:
            self._start(self._write(node, piece), [one for one, _ in piece])
        if leaderless:
            self._start(self._send_again(list(leaderless)), list(leaderless))
        if unknown:
            self._start(self._check_deleted(unknown), unknown)

    def _group(self, name: TopicPartition) -> GroupId:
        return GroupId(self._state.topics[name.topic].topic_id, name.partition)

    def _marker(self, one: _Unwritten) -> Marker:
        topic = self._state.topics[one.name.topic]
        return one.to_wire(self._group(one.name), self._view.partition(topic, one.name.partition).term)

    def _start(self, work: Coroutine[None, None, None], markers: list[_Unwritten]) -> None:
        """Work on these markers."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, markers))

    def _ended(self, task: asyncio.Task[None], markers: list[_Unwritten]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            with self._sent_again_after_bugs(markers):
                task.result()

    @contextmanager
    def _sent_again_after_bugs(self, markers: list[_Unwritten]) -> Iterator[None]:
        is_over = False
        with logged_bugs("sending the markers of transactions"):
            yield
            is_over = True
        if markers and not is_over:
            self._start(self._add_later(markers), markers)

    async def _add_later(self, markers: list[_Unwritten]) -> None:
        await asyncio.sleep(max(backoff.next_seconds() for backoff in {one.backoff for one in markers}))
        self._add(markers)

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
        self._report(written)
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
        self._report(gone)

    def _report(self, written: Iterable[_Unwritten]) -> None:
        """Tells each coordinator, with one report for all partitions of a transaction. A bug there does not keep the
        other transactions open."""
        transactions: dict[tuple[Host, str, int], list[_Unwritten]] = {}
        for one in written:
            message = one.message
            transactions.setdefault((one.host, message.transactional_id, message.id), []).append(one)
        for (host, transactional_id, markers_id), markers in transactions.items():
            names = [one.name for one in markers]
            with self._sent_again_after_bugs(markers):
                if not host.is_stopped:
                    host.carry_out(
                        host.core.markers_written(host.now_ms, transactional_id, markers_id, names)
                    )

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
