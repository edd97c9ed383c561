"""Moves to a dead node, and other moves that replace them, while the partition takes writes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import ErrorCode
from penstock.types import NodeId, Replica
from tests.kafka.requests import create, reassign, write
from tests.kafka.trio import PATIENCE_SECONDS, Trio

Unique = Callable[[str], str]
NODES = (1, 2, 3)
PAUSE_SECONDS = 0.02


@contextmanager
def written_to(trio: Trio, topic: str) -> Iterator[None]:
    """Some fifty records a second, to the node that leads at first. Begins when one is acked."""
    stopping, acked = threading.Event(), threading.Event()
    leader = trio.leader(topic)

    def write_on() -> None:
        with trio.client(leader) as client:
            while not stopping.wait(PAUSE_SECONDS):
                if write(client, topic, once=True).error_code == ErrorCode.NONE:
                    acked.set()

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        assert acked.wait(PATIENCE_SECONDS)
        yield
    finally:
        stopping.set()
        writer.join()


def is_at(trio: Trio, asked: int, topic: str, replicas: list[int]) -> bool:
    """The partition has these replicas, and no learner is left."""
    assignment = trio.node(asked).metadata.state.topics[topic].assignments[0]
    if assignment.target is not None or list(assignment.replicas) != replicas:
        return False
    config = trio.replica(replicas[0], topic).replica.consensus.core.config
    return config is not None and sorted(one.node for one in config.members) == sorted(replicas)


@pytest.mark.parametrize("wanted", ["fewer", "cancelled"])
def test_a_move_that_replaces_one_to_a_dead_node_does_not_wait_for_it_under_load(
    trio: Trio, unique: Unique, wanted: str
) -> None:
    name = unique("overtaken")
    controller = trio.controller()
    gone, other = (one for one in NODES if one != controller)
    with trio.client(controller) as client:
        create(client, name, replicas=1)
        assert reassign(client, name, [controller, other]) == ErrorCode.NONE
        trio.eventually(lambda: is_at(trio, controller, name, [controller, other]))
        trio.hand_over(name, controller)
        with trio.cut_off(gone), written_to(trio, name):
            assert reassign(client, name, [controller, gone]) == ErrorCode.NONE
            trio.eventually(lambda: trio.replica(controller, name).replica.consensus.core.catching_up_for)
            now = [controller] if wanted == "fewer" else None
            assert reassign(client, name, now) == ErrorCode.NONE
            trio.eventually(lambda: is_at(trio, controller, name, now or [controller, other]))


def test_the_metadata_group_does_not_wait_for_a_removed_voter(trio: Trio) -> None:
    controller = trio.node(trio.controller()).metadata
    consensus = controller.partition.replica.consensus
    core = consensus.core
    voters = trio.eventually(lambda: None if core.config is None or core.changing else core.config.voters)
    stranger = Replica(NodeId(9), 9)

    def begin() -> None:
        consensus.change_config((*voters[:2], stranger))
        assert core.catching_up_for is not None

    def has_gone_back() -> bool:
        config = core.config
        return config is not None and not core.changing and stranger not in config.members

    trio.call(begin)
    trio.eventually(has_gone_back)
    assert core.config is not None
    assert sorted(core.config.voters) == sorted(voters)
