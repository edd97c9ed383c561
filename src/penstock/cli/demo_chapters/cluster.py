"""Three nodes, one of them killed with kill -9 while it leads and a producer is at work: the others take over."""

import time

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import NewTopic

from penstock.cli.cluster_plan import LocalCluster, new_plan, places
from penstock.cli.cluster_processes import LOOK_SECONDS, READY_SECONDS, Child, Children
from penstock.cli.connection import Connection
from penstock.cli.demo_chapters.counting import read_numbers
from penstock.cli.demo_stage import Stage
from penstock.cli.output import table
from penstock.cli.problem import Problem

TOPIC = "shipments"
NODES = 3
PARTITIONS = 6
SHARE = 0.25
"""Of the demo's messages: every one is written three times here."""
LOSS_AT = 0.4
"""Of the messages acknowledged; the rest is in flight or not sent yet when the leader dies."""
IN_FLIGHT_MOST = 0.2
"""Of the messages, or a fast producer would have handed over everything before the loss."""
PATIENCE_S = 45.0
METADATA_S = 5.0

Leaders = dict[int, int]
"""Which node leads each partition; -1: nobody."""


class Account:
    """Which numbers were acknowledged, and for how long the partitions that lost their leader had none to do it."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.failed = 0
        self.lost_at: float | None = None
        self.orphans: set[int] = set()
        """Partitions whose leader was killed and that have acknowledged nothing since."""
        self.gap_seconds = 0.0

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acknowledged.append(int(message.key() or b"0"))
        if self.lost_at is not None and message.partition() in self.orphans:
            self.orphans.discard(message.partition() or 0)
            self.gap_seconds = time.perf_counter() - self.lost_at  # of the last one, in the end


def play(stage: Stage) -> None:
    stage.chapter("A cluster that loses a leader")
    folder = stage.scratch / "cluster"
    folder.mkdir()
    plan = new_plan(folder, NODES, memory=False, ports=places(1, kafka_port=None, http_port=None))
    plan.write()
    with Children(plan, ("--log-level", "warning")) as nodes:
        _start(stage, nodes)
        connection = Connection(bootstrap=plan.bootstrap)
        before = _create_topic(connection)
        victim = before[0]
        with stage.working("producing, and killing a leader meanwhile"):
            account, count = _produce_through_the_loss(stage, plan, nodes.all[victim - 1], before)
        led = sum(leader == victim for leader in before.values())
        stage.say(
            f"kill -9 of node {victim}, which led {led} of {PARTITIONS} partitions, after {count:,} "
            "acknowledged messages"
        )
        _show_leaders(stage, before, _leaders(connection))
        _tell_gap(stage, account)
        with stage.working("counting"):
            stored = read_numbers(connection, TOPIC, PARTITIONS)
        _verify(stage, account, stored)


def _start(stage: Stage, nodes: Children) -> None:
    began = time.perf_counter()
    with stage.working(f"starting {NODES} nodes"):
        nodes.start()
        waiting = list(nodes.all)
        while waiting:
            waiting = [node for node in waiting if not node.is_ready()]
            dead = next((node for node in waiting if not node.alive), None)
            if dead is not None:
                raise Problem(f"node {dead.node.node_id} {dead.death()}")
            if time.perf_counter() - began > READY_SECONDS:
                raise Problem(f"the cluster was not ready within {READY_SECONDS:.0f} s")
            if waiting:
                time.sleep(LOOK_SECONDS)
    seconds = time.perf_counter() - began
    stage.say(f"{NODES} nodes found a cluster, all ready after {seconds:.1f} s")


def _create_topic(connection: Connection) -> Leaders:
    admin = connection.admin()
    [future] = admin.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)]).values()
    connection.wait(future, f"creating {TOPIC}")
    return _leaders(connection)


def _leaders(connection: Connection) -> Leaders:
    """Waits until every partition has one."""
    admin = connection.admin()
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        known = admin.list_topics(TOPIC, timeout=METADATA_S).topics[TOPIC].partitions
        found = {number: part.leader for number, part in sorted(known.items())}
        if len(found) == PARTITIONS and min(found.values()) > 0:
            return found
        time.sleep(LOOK_SECONDS)
    raise Problem(f"not every partition of {TOPIC} has a leader")


def _produce_through_the_loss(
    stage: Stage, plan: LocalCluster, victim: Child, leaders: Leaders
) -> tuple[Account, int]:
    """The idempotent producer is not told about it: it retries until it finds the next leaders."""
    account = Account()
    messages = int(stage.messages * SHARE)
    producer = Connection(bootstrap=plan.bootstrap).producer(
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        queue_buffering_max_messages=max(100, int(messages * IN_FLIGHT_MOST)),
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=100,
        retry_backoff_ms=50,
    )
    count = 0
    for number in range(messages):
        _send(producer, number, account)
        if account.lost_at is None and len(account.acknowledged) >= messages * LOSS_AT:
            count = len(account.acknowledged)
            victim.kill()
            while producer.poll(0):  # acknowledgements from before
                pass
            account.orphans = {part for part, leader in leaders.items() if leader == victim.node.node_id}
            account.lost_at = time.perf_counter()
    if producer.flush(PATIENCE_S) or account.failed:
        raise Problem("the producer could not deliver everything after the loss")
    return account, count


def _send(producer: Producer, number: int, account: Account) -> None:
    while True:
        try:
            producer.produce(
                TOPIC,
                b"on its way",
                str(number).encode(),
                partition=number % PARTITIONS,
                on_delivery=account.delivered,
            )
            break
        except BufferError:
            producer.poll(0.01)
    producer.poll(0)


def _show_leaders(stage: Stage, before: Leaders, after: Leaders) -> None:
    rows = [[number, f"node {before[number]}", f"node {after[number]}"] for number in before]
    stage.show(table("partition", "led by", "then by", rows=rows, numbers=["partition"]))


def _tell_gap(stage: Stage, account: Account) -> None:
    stage.say(
        f"{account.gap_seconds:.1f} s without a leader: then the others acknowledged what was sent to it"
    )
    stage.figure(
        "failover_ms", "kill -9 of a leader to acknowledgements of the next, ms", account.gap_seconds * 1000
    )


def _verify(stage: Stage, account: Account, stored: dict[int, int]) -> None:
    lost = sum(1 for number in account.acknowledged if not stored[number])
    repeated = sum(1 for count in stored.values() if count > 1)
    if lost or repeated or len(stored) != len(account.acknowledged):
        raise Problem(f"{lost:,} acknowledged messages are lost and {repeated:,} are there more than once")
    stage.say(
        f"{len(account.acknowledged):,} messages acknowledged, {len(stored):,} found with one node gone: none lost, "
        "none twice"
    )
    stage.figure("cluster_acknowledged", "messages acknowledged by the cluster", len(account.acknowledged))
    stage.figure("cluster_lost", "of these, lost with the leader", lost)
