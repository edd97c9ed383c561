"""Consensus, without I/O: one Raft core per partition."""
