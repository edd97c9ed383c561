"""What a worker knows of its clique, for people."""

from typing import Any

import msgspec

from penstock.clique.clocks import lease_clock_ms
from penstock.clique.membership import Membership
from penstock.ring.slots import slots_of
from penstock.ring.table import NO_OWNER


class CliqueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The view of one process, without a request."""

    clique: str
    carrier: str
    guarantee: str
    worker: str | None = None
    """None: this process has no handlers, and is not a worker."""
    member_id: str | None = None
    is_member: bool = False
    """Whether this worker has joined and takes messages. On a carrier that is not durable, a message that is published
    before that may reach no worker."""
    lease_left_ms: int = 0
    """For how long handlers may start without another answer to a heartbeat."""
    epoch: int = 0
    slots: int = 0
    """How many slots this worker owns."""
    shares: dict[str, int] = {}
    """How many slots each worker owns."""
    handing_over: int = 0
    """Slots of all workers that are on their way to another owner."""
    in_flight: int = 0
    """Messages that this process has got and that are not handled."""
    handled: int = 0
    failed: int = 0
    """Messages that were given up, and requests whose responder has failed."""


def membership_facts(membership: Membership, *, has_joined: bool) -> dict[str, Any]:
    """The fields that come from the membership. `has_joined`: whether the worker takes messages."""
    table = membership.latest_table
    left_ms = max(0.0, membership.lease_ends_ms - lease_clock_ms())
    is_member = has_joined and membership.is_member
    facts: dict[str, Any] = {
        "worker": membership.worker,
        "member_id": membership.member_id,
        "is_member": is_member,
        "lease_left_ms": round(left_ms),
    }
    if table is None:
        return facts
    owners = [owner for owner in table.owner_indexes if owner != NO_OWNER]
    shares = {worker: owners.count(index) for index, worker in enumerate(table.workers)}
    return {
        **facts,
        "epoch": table.epoch,
        "shares": shares,
        "slots": shares.get(membership.worker, 0) if is_member else 0,
        "handing_over": len(slots_of(table.revoked)),
    }
