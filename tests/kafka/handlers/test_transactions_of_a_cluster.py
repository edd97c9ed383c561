"""Transactions on three nodes: the coordinator, the leaders and the client are on different ones, and roles move."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from penstock.cluster import TRANSACTIONS_TOPIC, offsets_partition
from penstock.config import TransactionSettings
from penstock.errors import ErrorCode
from penstock.types import Isolation
from tests.kafka.committed_records import committed_values
from tests.kafka.requests import create
from tests.kafka.transactional_producer import TransactionalProducer
from tests.kafka.trio import Trio

PARTITIONS = 3


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    settings = {"transactions": TransactionSettings(topic_partitions=PARTITIONS)}
    with Trio(settings=settings) as running:
        yield running


class Scene:
    """A producer, the node that coordinates it, and the node that leads its topic."""

    def __init__(self, trio: Trio, topic: str, connections: ExitStack, *, v2: bool) -> None:
        self.trio = trio
        self.topic = topic
        self._connections = connections
        self._client = connections.enter_context(trio.client(1))
        self.producer = TransactionalProducer(self._client, f"producer-of-{topic}", v2=v2)
        self.producer.find_coordinator()
        self.index = offsets_partition(self.producer.transactional_id, PARTITIONS)
        trio.leader(TRANSACTIONS_TOPIC, self.index)

    def place(self, *, coordinator: int, leader: int) -> None:
        self.move_coordinator(coordinator)
        self.move_leader(leader)

    def move_coordinator(self, node: int) -> None:
        self.trio.hand_over(TRANSACTIONS_TOPIC, node, self.index)
        self.producer.client = self._connections.enter_context(self.trio.client(node))

    def move_leader(self, node: int) -> None:
        self.trio.hand_over(self.topic, node)
        self.producer.leader = self._connections.enter_context(self.trio.client(node))

    def wait_committed(self, *values: str) -> None:
        """All is stable on the leader, and readers of committed records see these."""
        leader = self.trio.leader(self.topic)
        partition = self.trio.replica(leader, self.topic)
        self.trio.eventually(
            lambda: partition.end_for(Isolation.READ_COMMITTED) == partition.log.end_offset or None
        )
        with self.trio.client(leader) as client:
            assert committed_values(client, self.topic) == list(values)


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def scene(trio: Trio, topic: str, connections: ExitStack, request: pytest.FixtureRequest) -> Scene:
    return Scene(trio, topic, connections, v2=request.param)


def test_coordinator_and_leader_may_be_on_different_nodes(scene: Scene) -> None:
    scene.place(coordinator=1, leader=2)
    scene.producer.begin()
    scene.producer.write(scene.topic, "a")
    scene.producer.finish(commit=True)
    scene.producer.write(scene.topic, "b")
    scene.producer.finish(commit=False)
    scene.wait_committed("a")


def test_an_open_transaction_goes_on_with_the_next_leader_of_its_partition(scene: Scene) -> None:
    scene.place(coordinator=1, leader=2)
    scene.producer.begin()
    scene.producer.write(scene.topic, "a")
    scene.move_leader(3)
    scene.producer.write(scene.topic, "b")
    scene.producer.finish(commit=True)
    scene.wait_committed("a", "b")


def test_an_open_transaction_goes_on_with_the_next_coordinator(scene: Scene) -> None:
    scene.place(coordinator=1, leader=2)
    scene.producer.begin()
    scene.producer.write(scene.topic, "a")
    scene.move_coordinator(3)
    scene.producer.write(scene.topic, "b")
    scene.producer.finish(commit=True)
    scene.wait_committed("a", "b")


def test_a_node_that_does_not_coordinate_says_so(scene: Scene, connections: ExitStack) -> None:
    scene.place(coordinator=1, leader=2)
    scene.producer.begin()
    scene.producer.client = connections.enter_context(scene.trio.client(3))
    assert scene.producer.init() == ErrorCode.NOT_COORDINATOR
    assert scene.producer.add(scene.topic) == ErrorCode.NOT_COORDINATOR
    assert scene.producer.end(commit=True) == ErrorCode.NOT_COORDINATOR


@pytest.mark.long  # a node stops and starts again, and both roles move
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_the_next_coordinator_writes_the_markers_of_a_decided_transaction(
    trio: Trio, connections: ExitStack, unique: Callable[[str], str], commit: bool
) -> None:
    """The only replica of the partition is away when the outcome is decided, and the coordinator is gone when it comes
    back."""
    alone = unique("alone")
    with trio.client(1) as client:
        create(client, alone, replicas=1)
    home = trio.leader(alone)
    first, second = (node for node in (1, 2, 3) if node != home)
    scene = Scene(trio, alone, connections, v2=False)
    scene.place(coordinator=first, leader=home)
    scene.producer.begin()
    scene.producer.write(alone, "a")
    trio.stop(home)
    try:
        scene.producer.finish(commit=commit)
        scene.move_coordinator(second)
    finally:
        trio.start(home)
    scene.wait_committed(*(["a"] if commit else []))
    scene.producer.leader = connections.enter_context(trio.client(home))
    scene.producer.write(alone, "b")
    scene.producer.finish(commit=True)
    scene.wait_committed(*(["a", "b"] if commit else ["b"]))
