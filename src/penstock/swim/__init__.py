"""Membership, without I/O: who is there, by gossip."""
