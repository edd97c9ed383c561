"""Frames go to the handler of their kind, connection events to all listeners."""

import pytest

from penstock.node.peers import FrameDispatcher
from penstock.types import NodeId

from .peer_nodes import KIND, hello


def test_frames_of_a_newer_version_are_dropped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = FrameDispatcher()
    taken: list[bytes] = []
    dispatcher.take(KIND, lambda sender, body: taken.append(bytes(body)))
    for kind in (KIND + 1, KIND, KIND + 1):
        dispatcher.on_frame(NodeId(7), kind, memoryview(b"x"))
    assert taken == [b"x"]
    assert [record.getMessage() for record in caplog.records] == [
        "node 7 sends frames of kind 21, which this version does not know"
    ]


def test_the_first_listener_is_told_of_a_connection_first_and_of_its_end_last() -> None:
    dispatcher = FrameDispatcher()
    told: list[str] = []
    for name in ("rpc", "raft"):
        dispatcher.watch(
            up=lambda node, name=name: told.append(f"{name} up {node}"),
            down=lambda node, name=name: told.append(f"{name} down {node}"),
            hello=lambda hello, dialled, name=name: told.append(f"{name} {hello.node}"),
        )
    dispatcher.on_hello(hello(3), None)
    dispatcher.on_up(NodeId(3))
    dispatcher.on_down(NodeId(3))
    assert told == ["rpc 3", "raft 3", "rpc up 3", "raft up 3", "raft down 3", "rpc down 3"]
