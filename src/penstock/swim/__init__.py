"""Membership by gossip, without I/O: SWIM with the Lifeguard refinements. It reports which nodes can be reached, and
decides nothing."""

from penstock.swim.core import Swim
from penstock.swim.packets import PacketError
from penstock.swim.seal import SALT_BYTES
from penstock.swim.settings import SwimSettings
from penstock.swim.values import (
    Conflict,
    Effect,
    GossipEndpoint,
    Member,
    MemberChanged,
    MemberMeta,
    PacketRefusal,
    PacketRefused,
    SaveIncarnation,
    SendPacket,
    SendReliable,
    Session,
    State,
)

__all__ = [
    "SALT_BYTES",
    "Conflict",
    "Effect",
    "GossipEndpoint",
    "Member",
    "MemberChanged",
    "MemberMeta",
    "PacketError",
    "PacketRefusal",
    "PacketRefused",
    "SaveIncarnation",
    "SendPacket",
    "SendReliable",
    "Session",
    "State",
    "Swim",
    "SwimSettings",
]
