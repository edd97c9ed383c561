"""Cliques: workers in a ring, where every slot of keys has one owner at a time. Sans-I/O.

Start reading at `clique_state.py` (who owns what, and why there is one owner) and `member.py` (the worker's side). Here
are the values that workers and nodes exchange: a node without cliques loads no more of the package."""

from penstock.ring.descriptions import CliqueDescription, CliqueOutline, MemberDescription
from penstock.ring.heartbeats import (
    DEFAULT_LEASE_MS,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    CliqueLimits,
    Heartbeat,
    HeartbeatReply,
    HeartbeatStatus,
    check_clique_name,
)
from penstock.ring.slots import SLOTS, bitmap_of, has_slot, slot_of, slots_of
from penstock.ring.table import NO_EPOCH, Holder, SlotOwner, Table

__all__ = [
    "DEFAULT_LEASE_MS",
    "LEASE_MS_MAX",
    "LEASE_MS_MIN",
    "NO_EPOCH",
    "SLOTS",
    "CliqueDescription",
    "CliqueLimits",
    "CliqueOutline",
    "Heartbeat",
    "HeartbeatReply",
    "HeartbeatStatus",
    "Holder",
    "MemberDescription",
    "SlotOwner",
    "Table",
    "bitmap_of",
    "check_clique_name",
    "has_slot",
    "slot_of",
    "slots_of",
]
