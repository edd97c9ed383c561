"""Deduplication by message id: the ids of each partition, loaded from its log, and the check of produced batches."""
