"""Deduplication by message id."""
