"""Transactions at work: coordinators, the markers that they have written, and the partitions that take part."""
