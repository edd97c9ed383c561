"""Cliques: workers in a ring, where every slot of keys has one owner at a time. Sans-I/O.

Start reading at `clique_state.py` (who owns what, and why there is one owner) and `member.py` (the worker's side)."""

from penstock.ring.assignment import rebalanced
from penstock.ring.beats import (
    DEFAULT_LEASE_MS,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Beat,
    BeatReply,
    BeatStatus,
    CliqueLimits,
    check_clique_name,
)
from penstock.ring.clique_changes import CliqueCounters
from penstock.ring.clique_state import CliqueState, Member
from penstock.ring.coordinator import CliqueCoordinator
from penstock.ring.descriptions import CliqueDescription, CliqueOutline, MemberDescription
from penstock.ring.gossip import Gossip, PeerState, decode_gossip, encode_gossip
from penstock.ring.member import MemberCore
from penstock.ring.observer import SilenceObserver, apply_beat
from penstock.ring.owner_fence import OwnerFence
from penstock.ring.routing import HOPS_MAX, ForwardTo, Hold, Refuse, Route, RunHere, route
from penstock.ring.slots import SLOTS, bitmap_of, has_slot, slot_of, slots_of
from penstock.ring.state_codec import decode_state, encode_state
from penstock.ring.table import NO_EPOCH, Holder, SlotOwner, Table
from penstock.ring.view import View, ViewSettings

__all__ = [
    "DEFAULT_LEASE_MS",
    "HOPS_MAX",
    "LEASE_MS_MAX",
    "LEASE_MS_MIN",
    "NO_EPOCH",
    "SLOTS",
    "Beat",
    "BeatReply",
    "BeatStatus",
    "CliqueCoordinator",
    "CliqueCounters",
    "CliqueDescription",
    "CliqueLimits",
    "CliqueOutline",
    "CliqueState",
    "ForwardTo",
    "Gossip",
    "Hold",
    "Holder",
    "Member",
    "MemberCore",
    "MemberDescription",
    "OwnerFence",
    "PeerState",
    "Refuse",
    "Route",
    "RunHere",
    "SilenceObserver",
    "SlotOwner",
    "Table",
    "View",
    "ViewSettings",
    "apply_beat",
    "bitmap_of",
    "check_clique_name",
    "decode_gossip",
    "decode_state",
    "encode_gossip",
    "encode_state",
    "has_slot",
    "rebalanced",
    "route",
    "slot_of",
    "slots_of",
]
