"""Where a message goes: decided by the newest table that a worker knows, and by how often the message was forwarded.

Carriers with queue groups give a message to any member, which forwards it to the owner of its slot. Two workers with
different tables could send it to each other for ever. So every forwarding counts, and after HOPS_MAX the message goes
back to the worker that got it from the carrier, which tries again when the table changes.
"""

from typing import Final

import msgspec

from penstock.ring.table import Table

HOPS_MAX: Final = 4
"""One hop is usual, two happen while a slot changes hands. More say that tables disagree, and waiting helps more."""


class RunHere(msgspec.Struct, frozen=True):
    """This worker owns the slot."""


class ForwardTo(msgspec.Struct, frozen=True):
    member_id: str


class Hold(msgspec.Struct, frozen=True):
    """The slot has no owner, or is being handed over: the next table will tell."""


class Refuse(msgspec.Struct, frozen=True):
    """It was forwarded too often."""


Route = RunHere | ForwardTo | Hold | Refuse


def route(table: Table | None, member_id: str, slot: int, hops: int, *, is_nested: bool = False) -> Route:
    """`is_nested`: a request from inside a handler may enter a slot that is being handed over."""
    owner = None if table is None else table.owner_of(slot)
    if owner is None or (owner.revoked and not is_nested):
        return Hold()
    if owner.member_id == member_id:
        return RunHere()
    return ForwardTo(owner.member_id) if hops < HOPS_MAX else Refuse()
