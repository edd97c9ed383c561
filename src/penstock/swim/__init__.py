"""Membership, without I/O: who is there, by gossip. SWIM with the Lifeguard refinements; it hints and never decides."""

from penstock.swim.chance import Chance
from penstock.swim.core import Swim
from penstock.swim.packets import PacketError
from penstock.swim.settings import SwimSettings
from penstock.swim.values import (
    Conflict,
    Effect,
    Endpoint,
    Member,
    MemberChanged,
    MemberMeta,
    Refusal,
    Refused,
    SaveIncarnation,
    SendPacket,
    SendReliable,
    Session,
    State,
)

__all__ = [
    "Chance",
    "Conflict",
    "Effect",
    "Endpoint",
    "Member",
    "MemberChanged",
    "MemberMeta",
    "PacketError",
    "Refusal",
    "Refused",
    "SaveIncarnation",
    "SendPacket",
    "SendReliable",
    "Session",
    "State",
    "Swim",
    "SwimSettings",
]
