"""Three nodes, one of them killed with kill -9 while it leads and a producer is at work: the others take over."""

import time

from confluent_kafka import Message

from penstock.cli.cluster_plan import free_nodes, new_plan
from penstock.cli.cluster_processes import LOOK_SECONDS, Children
from penstock.cli.connection import Connection
from penstock.cli.demo_chapters.numbered import TIMEOUT_S, Numbered
from penstock.cli.demo_stage import Stage, create_topics
from penstock.cli.output import table
from penstock.cli.problem import Problem

TOPIC = "shipments"
NODES = 3
PARTITIONS = 6
SHARE = 0.25
"""The share of the demo's messages that this chapter sends: every one is written three times here."""
METADATA_S = 5.0

Leaders = dict[int, int]
"""The node that leads each partition; -1: none does."""


def play(stage: Stage) -> None:
    stage.chapter("A cluster that loses a leader")
    folder = stage.scratch / "cluster"
    folder.mkdir()
    plan = new_plan(folder, NODES, memory=False, ports=free_nodes(1, kafka_port=None, http_port=None))
    plan.write()
    with Children(plan, ("--log-level", "warning")) as nodes:
        began = time.perf_counter()
        with stage.working(f"starting {NODES} nodes"):
            nodes.start()
            nodes.await_ready()
        stage.say(f"{NODES} nodes found a cluster, all ready after {time.perf_counter() - began:.1f} s")
        connection = Connection(bootstrap=plan.bootstrap)
        create_topics(connection, TOPIC, partitions=PARTITIONS, replicas=NODES)
        before = _leaders(connection)
        victim = before[0]
        with stage.working("producing, and killing a leader meanwhile"):
            sender, gap_seconds = _send_through_the_loss(stage, connection, nodes, before)
        led = sum(leader == victim for leader in before.values())
        stage.say(
            f"kill -9 of node {victim}, which led {led} of {PARTITIONS} partitions, after "
            f"{sender.acked_before:,} acknowledged messages"
        )
        _show_leaders(stage, before, _leaders(connection))
        stage.say(f"{gap_seconds:.1f} s without a leader: then the others acknowledged what was sent to it")
        stage.figure(
            "failover_ms", "kill -9 of a leader to acknowledgements of the next, ms", gap_seconds * 1000
        )
        with stage.working("counting"):
            stored, lost, _ = sender.count(connection, PARTITIONS)
    acked = len(sender.acknowledged)
    stage.say(f"{acked:,} messages acknowledged, {stored:,} found with one node gone: none lost, none twice")
    stage.figure("cluster_acknowledged", "messages acknowledged by the cluster", acked)
    stage.figure("cluster_lost", "of these, lost with the leader", lost)


def _leaders(connection: Connection) -> Leaders:
    """Waits until every partition has one."""
    admin = connection.admin()
    deadline = time.perf_counter() + TIMEOUT_S
    while time.perf_counter() < deadline:
        known = admin.list_topics(TOPIC, timeout=METADATA_S).topics[TOPIC].partitions
        found = {number: part.leader for number, part in sorted(known.items())}
        if len(found) == PARTITIONS and min(found.values()) > 0:
            return found
        time.sleep(LOOK_SECONDS)
    raise Problem(f"not every partition of {TOPIC} has a leader")


def _send_through_the_loss(
    stage: Stage, connection: Connection, nodes: Children, leaders: Leaders
) -> tuple[Numbered, float]:
    """The messages, and for how many seconds the partitions of the killed leader acknowledged nothing."""
    sender = Numbered(connection, TOPIC, int(stage.messages * SHARE), retry_backoff_ms=50)
    orphans = {partition for partition, leader in leaders.items() if leader == leaders[0]}
    gaps: list[float] = []

    def acknowledged(message: Message) -> None:
        if message.partition() in orphans:
            orphans.discard(message.partition() or 0)
            gaps.append(time.perf_counter() - (sender.killed_at or 0))

    sender.after_kill = acknowledged
    sender.send_all(nodes.all[leaders[0] - 1].kill, lambda: None, PARTITIONS)
    return sender, gaps[-1]


def _show_leaders(stage: Stage, before: Leaders, after: Leaders) -> None:
    rows = [[number, f"node {before[number]}", f"node {after[number]}"] for number in before]
    stage.show(table("partition", "led by", "then by", rows=rows, numbers=["partition"]))
