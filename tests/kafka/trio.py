"""A cluster of three nodes inside this process, as clients see it: leaders, coordinators, lost nodes.

All three live on one event loop in a thread. Their logs are in memory and outlive a restart.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import msgspec
import pytest
import uvloop

from penstock.config import Address, ClusterSettings, GroupSettings, NodeConfig
from penstock.errors import KafkaError
from penstock.log.memory_disk import MemoryDisk
from penstock.node import Node, Partition
from penstock.node.calls import BROKER
from penstock.node.replication import reconciler
from penstock.service import Service
from penstock.types import NodeId
from tests.kafka.raw import RawClient
from tests.ports import free_ports

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.02
ROUND_SECONDS = 0.05
"""Between two checks of a node's replicas against the metadata: moves and repairs take several."""
LARGE_FRAME_BYTES = 64 * 1024
TAIL_BYTES = 64
"""Of random bytes: enough to know a frame again."""
CALM = ClusterSettings(election_timeout_ms=3000, heartbeat_interval_ms=100, auto_rebalance=False)
"""Leaders stay where a test put them: a stall of the machine does not depose them, and the controller does not move
them back. An election that a test causes takes some seconds of waiting, and no CPU."""


class LastingDisk(MemoryDisk):
    """A disk in memory that survives a restart of its node."""

    volatile = False


class CopyBudget:
    """How much of a copy may pass. The frame that uses it up is still let through: a sender may put megabytes into its
    first one. What has passed may pass again: a busy node is sent some frames twice."""

    def __init__(self, left_bytes: int) -> None:
        self._left_bytes = left_bytes
        self._passed: set[bytes] = set()

    def lets_through(self, frame: bytes) -> bool:
        tail = frame[-TAIL_BYTES:]
        if len(frame) < LARGE_FRAME_BYTES or tail in self._passed:
            return True
        if self._left_bytes <= 0:
            return False
        self._left_bytes -= len(frame)
        self._passed.add(tail)
        return True


class Trio:
    """Nodes 1, 2 and 3."""

    def __init__(
        self,
        replication: ClusterSettings = CALM,
        groups: GroupSettings | None = None,
        *,
        status_topic: str = "",
        settings: dict[str, Any] | None = None,
        users: dict[str, str] | None = None,
    ) -> None:
        """`settings`: more of NodeConfig, for all nodes. `users`: the first ones, with passwords; login is required."""
        settings = {**(settings or {}), "require_login": True} if users else settings
        self._users = users
        self._election_seconds = replication.election_timeout_ms / 1000
        self.first_users: list[str] = []
        """The names that nodes were told to show."""
        ports = free_ports(6)
        seeds = tuple(Address("127.0.0.1", port) for port in ports[:3])
        self._configs = {
            node_id: msgspec.structs.replace(
                NodeConfig(
                    node_id=node_id,
                    memory=True,
                    kafka=Address("127.0.0.1", ports[2 + node_id]),
                    http=None,
                    status_topic=status_topic,
                    cluster=seeds[node_id - 1],
                    seeds=seeds,
                    rack=f"rack-{node_id}",
                    replication=replication,
                    groups=groups or GroupSettings(offsets_topic_partitions=3),
                ),
                **(settings or {}),
            )
            for node_id in (1, 2, 3)
        }
        self._disks = {node_id: LastingDisk() for node_id in self._configs}
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(reconciler, "ROUND_SECONDS", ROUND_SECONDS)
        self._services: dict[int, Service] = {}
        self._cut_off: set[int] = set()
        self._copy_budgets: dict[int, CopyBudget] = {}
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trio", daemon=True)
        self._thread.start()
        try:
            self.run(self._start_all())
        except BaseException:
            self.close()
            raise

    # --- start and stop

    async def _start_all(self) -> None:
        await asyncio.gather(*map(self._start, self._configs))

    async def _start(self, node_id: int) -> None:
        service = self._services[node_id] = Service(
            self._configs[node_id],
            disk=self._disks[node_id],
            users=self._users,
            on_first_user=lambda user, password: self.first_users.append(user),
        )
        await service.start()
        self._put_wirecutter(node_id)
        await service.wait_ready()

    async def _stop(self, node_id: int) -> None:
        await self._services.pop(node_id).stop()

    def stop(self, node_id: int) -> None:
        """As SIGTERM does: it hands over its leaderships and stops."""
        self.run(self._stop(node_id))

    def start(self, node_id: int) -> None:
        self.run(self._start(node_id))

    def close(self) -> None:
        async def stop_all() -> None:
            for node_id in self._services:
                self.node(node_id).ready = False  # no other node is left to hand over to
            await asyncio.gather(*map(self._stop, list(self._services)))

        self._cut_off.clear()
        self.run(stop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()
        self._patch.undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- cuts

    def _put_wirecutter(self, node_id: int) -> None:
        links = self.node(node_id).links
        assert links is not None
        network: Any = links.network
        send = network.send

        def send_unless_cut(to: NodeId, kind: int, body: Any) -> bool:
            is_cut = self._cut_off & {node_id, int(to)} or self._is_held_back(int(to), body)
            return not is_cut and send(to, kind, body)

        network.send = send_unless_cut

    @contextmanager
    def cut_off(self, node_id: int) -> Iterator[None]:
        """Nothing passes between this node and the others; clients still reach it."""
        self.call(lambda: self._cut_off.add(node_id))
        try:
            yield
        finally:
            self.call(lambda: self._cut_off.discard(node_id))

    def _is_held_back(self, to: int, body: Any) -> bool:
        budget = self._copy_budgets.get(to)
        return budget is not None and not budget.lets_through(
            body if isinstance(body, bytes) else b"".join(body)
        )

    @contextmanager
    def held_back(self, node_id: int, after_bytes: int) -> Iterator[None]:
        """Large frames to this node are lost after about so many bytes: a copy begins and gets no further."""
        self.call(lambda: self._copy_budgets.update({node_id: CopyBudget(after_bytes)}))
        try:
            yield
        finally:
            self.call(lambda: self._copy_budgets.pop(node_id))

    @contextmanager
    def unconfirmed(self, leader: int, topic: str) -> Iterator[None]:
        """The leader is as one that was elected a moment ago: nothing of its term is committed yet."""
        part: Any = self.replica(leader, topic).replica.consensus.core.part
        start = part.term_start

        def pretend(index: int) -> None:
            part.term_start = index

        self.call(lambda: pretend(2**60))
        try:
            yield
        finally:
            self.call(lambda: pretend(start))

    # --- inspection

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it on the nodes' loop. If it does not end, the error shows what every task there waits for."""
        outcome = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return outcome.result(PATIENCE_SECONDS)
        except TimeoutError:
            for task in asyncio.all_tasks(self._loop):
                task.print_stack()
            raise

    def call(self, question: Callable[[], T]) -> T:
        """Asks on the nodes' loop, between two of its turns."""

        async def ask() -> T:
            return question()

        return self.run(ask())

    def eventually(self, question: Callable[[], T | None]) -> T:
        """The first answer that is neither None nor False."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if (answer := self.call(question)) is not None and answer is not False:
                return answer
            time.sleep(LOOK_AGAIN_SECONDS)
        raise AssertionError("waited in vain")

    @property
    def running(self) -> list[int]:
        return sorted(self._services)

    def node(self, node_id: int) -> Node:
        node = self._services[node_id].node
        assert node is not None
        return node

    def replica(self, node_id: int, topic: str, index: int = 0) -> Partition:
        return self.node(node_id).partitions.get(topic, index)

    def leader(self, topic: str, index: int = 0, *, among: tuple[int, ...] = ()) -> int:
        """The leader, once there is one that is ready to serve and all nodes know it."""

        def agreed() -> int | None:
            asked = among or tuple(self._services)
            heard = {self.node(one).view.partition(self._topic(one, topic), index).leader for one in asked}
            [said] = heard if len(heard) == 1 else [-1]
            return said if said in asked and self.replica(said, topic, index).serves else None

        return self.eventually(lambda: agreed() if self._is_everywhere(topic, index, among) else None)

    def _is_everywhere(self, topic: str, index: int, among: tuple[int, ...]) -> bool:
        known = [self.node(one).metadata.state.topics.get(topic) for one in among or tuple(self._services)]
        return all(one is not None and index < one.partitions for one in known)

    def _topic(self, node_id: int, topic: str) -> Any:
        return self.node(node_id).metadata.state.topics[topic]

    def followers(self, topic: str, index: int = 0) -> list[int]:
        leader = self.leader(topic, index)
        return [node_id for node_id in self.running if node_id != leader]

    def controller(self) -> int:
        return self.eventually(
            lambda: next((one for one in self._services if self.node(one).metadata.is_controller), None)
        )

    def hand_over(self, topic: str, to: int, index: int = 0) -> None:
        """Lets this node lead a partition. A leader gives a transfer up after an election timeout, which may be too
        short on a busy machine: then it is asked again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (leader := self.leader(topic, index)) != to:
            assert time.monotonic() < deadline, f"node {leader} goes on leading {topic}-{index}"
            group = self.replica(leader, topic, index).group
            with suppress(KafkaError):  # a transfer is under way, or the leader has changed meanwhile
                self.run(self.node(leader).controller.hand_over(group, leader, to, caller=BROKER))
            settles_at = time.monotonic() + 2 * self._election_seconds
            self.eventually(
                lambda: self.replica(to, topic, index).serves or time.monotonic() > settles_at  # noqa: B023
            )

    # --- clients

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(self._configs[node_id].kafka) for node_id in self.running)

    def client(self, node_id: int) -> RawClient:
        return RawClient(Reached(bootstrap_servers=str(self._configs[node_id].kafka)))

    def address(self, node_id: int) -> tuple[str, int]:
        kafka = self._configs[node_id].kafka
        return kafka.host, kafka.port


class Reached(msgspec.Struct, frozen=True):
    """One node, as clients see it in metadata."""

    bootstrap_servers: str
