"""The kinds of frames between nodes. Numbers are on the wire and are never used for another kind. Numbers below these
belong to the transport."""

CALL = 16
"""These and CANCEL are of `peers.rpc`."""
ANSWER = 17
FAILURE = 18
RAFT = 19
"""Raft messages of many groups."""
HEARTBEAT = 20
"""Heartbeats for all groups that a node leads, and the reply."""
LEADERS = 21
GOSSIP = 22
"""Gossip packets that go over a connection instead of a datagram."""
CANCEL = 23
"""Came with a later version than the others. An earlier one drops this frame."""
