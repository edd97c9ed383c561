"""Cliques as people see them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.ring.clique_state import CliqueState, Member


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member as people see it."""

    worker: str
    member_id: str
    since_ms: int
    lease_ms: int
    lease_left_ms: int
    slots: int
    """How many it owns."""
    revoking: int
    """How many of these it has still to hand over."""
    leaving: bool
    streams: tuple[str, ...]
    overdue: int = 0
    """How many slots it does not hand over because its on_release has not returned in time."""


class CliqueDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A clique as people see it."""

    clique: str
    epoch: int
    changed_ms: int
    handovers: int
    """Slots that are being handed over."""
    members: tuple[MemberDescription, ...]


class CliqueOutline(msgspec.Struct, frozen=True, kw_only=True):
    """A clique in a list of all: nothing in it takes longer with more members."""

    clique: str
    epoch: int
    members: int
    handovers: int
    """Slots that are being handed over."""
    changed_ms: int


def outline_clique(name: str, state: "CliqueState") -> CliqueOutline:
    return CliqueOutline(
        clique=name,
        epoch=state.epoch,
        members=len(state.members),
        handovers=len(state.revoked),
        changed_ms=state.changed_ms,
    )


def describe_clique(
    name: str, state: "CliqueState", lease_left_ms: dict[str, int], overdue: Mapping[str, int]
) -> CliqueDescription:
    """`lease_left_ms` and `overdue`: by member id."""
    return CliqueDescription(
        clique=name,
        epoch=state.epoch,
        changed_ms=state.changed_ms,
        handovers=len(state.revoked),
        members=tuple(
            _describe_member(
                worker,
                member,
                state,
                lease_left_ms.get(member.member_id, member.lease_ms),
                overdue.get(member.member_id, 0),
            )
            for worker, member in sorted(state.members.items())
        ),
    )


def _describe_member(
    worker: str, member: "Member", state: "CliqueState", left_ms: int, overdue: int
) -> MemberDescription:
    return MemberDescription(
        worker=worker,
        member_id=member.member_id,
        since_ms=member.since_ms,
        lease_ms=member.lease_ms,
        lease_left_ms=max(0, left_ms),
        slots=state.share_of(worker),
        revoking=sum(state.owners[slot] == worker for slot in state.revoked),
        leaving=member.leaving,
        streams=member.streams,
        overdue=overdue,
    )
