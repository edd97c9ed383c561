"""The kinds of frames between nodes. Numbers are on the wire and are never used for another kind. Numbers below these
belong to the transport and the calls, as does 23."""

RAFT = 19
"""Raft messages of many groups."""
HEARTBEAT = 20
"""Heartbeats for all groups that a node leads, and the reply."""
LEADERS = 21
GOSSIP = 22
"""Gossip packets that go over a connection instead of a datagram."""
