"""Partitions and their Raft groups: logs that are written, flushed, replicated, read and repaired."""
