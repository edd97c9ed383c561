"""Coordinators of groups: sans-I/O cores hosted on the partitions of internal topics."""
