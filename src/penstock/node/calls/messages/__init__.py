"""Requests and responses between nodes, one module per subsystem. They are also what a node passes to itself."""
