"""What the frames between nodes hold. Numbers are on the wire and never used twice; those below are the transport's own
and the calls'."""

RAFT = 19
"""Raft messages of many groups."""
BEAT = 20
"""For all groups that a node leads, and the reply."""
LEADERS = 21
GOSSIP = 22
"""What gossip sends over a connection instead of a datagram."""
