"""Requests and responses between nodes, one module per subsystem. A request to the own node uses the same objects."""
