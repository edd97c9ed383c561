"""Frames between nodes, byte by byte.

    length  u32, big-endian: how many bytes follow it (kind, body and tag)
    kind    u8: below 16 the transport's own (below), from 16 on the node's
    body
    tag     16 bytes, only between nodes that have a key (seal.py)

`penstock.node.frames` reads them.
"""

from struct import Struct

HEAD = Struct(">IB")
LENGTH_SIZE = 4
KIND_SIZE = 1

INTRODUCTION = 1
REFUSAL = 2
PING = 3
FACTS = 4

FIRST_BUFFER = 2 * 1024 * 1024
"""A frame up to this size gets all of its buffer at once: it holds one message of entries (1 MiB by default) with space
to spare. Only nodes that have introduced themselves get this far."""
