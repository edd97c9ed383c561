"""Transactions with jobs on three nodes: coordinator, queue and its state have a node each, and move."""

from collections.abc import Callable, Iterator

import pytest

from penstock.client import Client, ClientError, Job, Queue
from penstock.cluster import STATE_TOPIC, TRANSACTIONS_TOPIC
from penstock.config import GroupSettings, TransactionSettings
from tests.client.committed import committed_values
from tests.faults.waiting import eventually
from tests.web.test_push_cluster import WebTrio

SOON = 60.0
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    groups = GroupSettings(offsets_topic_partitions=3, state_topic_partitions=1)
    settings = {"transactions": TransactionSettings(topic_partitions=1)}
    with WebTrio(groups=groups, settings=settings) as running:
        yield running


@pytest.fixture
def client(trio: WebTrio) -> Iterator[Client]:
    with Client(trio.bootstrap_servers) as made:
        yield made


class Scene:
    """A queue with one job, and a transaction that settles it and has one result."""

    def __init__(self, trio: WebTrio, client: Client, unique: Unique) -> None:
        self.trio = trio
        self.client = client
        self._name = unique("worker")
        self.jobs, self.results = unique("jobs"), unique("results")
        for name in (self.jobs, self.results):
            client.admin.create_topic(name, partitions=1, replication_factor=3)
        client.admin.create_queue(self.jobs, topic=self.jobs)
        client.publish(self.jobs, "job")
        self.transaction = client.transaction(self._name)

    def begin(self) -> None:
        """Publishes the result and settles the job. Then the consumer leaves, and the transaction is open."""
        eventually(self._begins, "a transaction with the job")

    def _begins(self) -> bool:
        """False if the job was lost: the queue's leader may have changed a moment ago."""
        self.transaction = self.client.transaction(self._name)
        with self.client.queue(self.jobs) as queue:
            job = take(queue)
            self.transaction.__enter__()
            self.transaction.publish(self.results, "result")
            try:
                self.transaction.ack(job).wait(SOON)
            except ClientError:
                self.transaction.abort()
                return False
        return True

    def place(self, *, jobs: int, state: int, coordinator: int) -> None:
        self.trio.hand_over(self.jobs, jobs)
        self.trio.hand_over(STATE_TOPIC, state)
        self.trio.hand_over(TRANSACTIONS_TOPIC, coordinator)

    def check_done(self) -> None:
        eventually(lambda: self.client.admin.queue(self.jobs).undone == 0, "the job to be done")
        self._check_results("result")

    def check_given_back(self) -> None:
        with self.client.queue(self.jobs) as queue:
            assert take(queue).text() == "job"
        self._check_results()

    def _check_results(self, *wanted: str) -> None:
        servers = self.trio.bootstrap_servers
        eventually(lambda: committed_values(servers, self.results) == [*wanted], f"{wanted} as results")


def take(queue: Queue) -> Job:
    job = queue.receive(SOON)
    assert job is not None
    return job


@pytest.fixture
def scene(trio: WebTrio, client: Client, unique: Unique) -> Scene:
    made = Scene(trio, client, unique)
    with client.transaction(unique("first")) as transaction:  # creates the topic of the coordinators
        transaction.commit_offsets(unique("readers"), {(made.results, 0): 0})
    return made


def test_each_role_may_be_on_another_node(scene: Scene) -> None:
    with scene.client.queue(scene.jobs) as queue:
        take(queue).retry(delay=0).wait(SOON)  # creates the topic of the queues' state
    scene.place(jobs=1, state=2, coordinator=3)
    scene.begin()
    scene.transaction.commit()
    scene.check_done()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("moved", ["jobs", "state", "coordinator"])
def test_a_role_may_move_while_the_transaction_is_open(scene: Scene, moved: str, commits: bool) -> None:
    scene.begin()
    roles = {"jobs": 1, "state": 1, "coordinator": 1}
    scene.place(**roles)
    scene.place(**{**roles, moved: 2})
    if commits:
        scene.transaction.commit()
        scene.check_done()
    else:
        scene.transaction.abort()
        scene.check_given_back()


def test_all_roles_may_move_after_the_commit(scene: Scene) -> None:
    scene.begin()
    scene.transaction.commit()
    scene.place(jobs=1, state=1, coordinator=1)
    scene.place(jobs=2, state=3, coordinator=2)
    scene.check_done()


def test_the_count_of_a_queue_without_consumers_knows_open_and_committed_settlements(scene: Scene) -> None:
    """The new leader has no driver of the queue: only the stored state is counted."""
    scene.begin()
    before = scene.trio.leader(scene.jobs)
    scene.trio.hand_over(scene.jobs, before % 3 + 1)
    assert scene.client.admin.queue(scene.jobs).undone == 1
    scene.transaction.commit()
    scene.check_done()
