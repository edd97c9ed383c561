"""Cliques in JSON."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.ring import DEFAULT_LEASE_MS, LEASE_MS_MAX, LEASE_MS_MIN, Heartbeat
from penstock.ring.names import NAME_CHARS_MAX, NAME_PATTERN, NAME_RULE
from penstock.ring.slots import BITMAP_BYTES, SLOTS
from penstock.web.api.expected import EXPECTED

STREAMS_MAX = 64
"""As many as `limits.max_clique_streams` may allow."""
WAIT_MS_MAX = 30_000


def _name(description: str) -> Meta:
    return Meta(
        pattern=NAME_PATTERN,
        max_length=NAME_CHARS_MAX,
        description=description,
        extra={EXPECTED: NAME_RULE},
    )


CliqueName = Annotated[str, _name("A clique's name, which its queue has too.")]
WorkerName = Annotated[str, _name("The name of a worker.")]
StreamName = Annotated[str, _name("The topic of a stream.")]
MemberId = Annotated[str, Meta(min_length=1, max_length=64, description="One incarnation of a worker.")]
Epoch = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class CliqueParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    clique: CliqueName


class MemberParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    clique: CliqueName
    worker: WorkerName


class WorkerHeartbeat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's report. `epoch` is the newest table that it knows, `held` the slots that it has not let go of (a
    bitmap), `overdue` the number of slots that wait for an on_release which has not returned in time. The reply may be
    held back for `wait_ms` if there is no news for the worker."""

    member_id: MemberId
    sequence: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    lease_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] = DEFAULT_LEASE_MS
    epoch: Epoch = 0
    held: Annotated[bytes, Meta(max_length=BITMAP_BYTES)] = b""
    leaving: bool = False
    streams: Annotated[list[StreamName], Meta(max_length=STREAMS_MAX)] = []
    overdue: Annotated[int, Meta(ge=0, le=SLOTS)] = 0
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0

    def heartbeat(self, worker: str) -> Heartbeat:
        return Heartbeat(
            worker=worker,
            member_id=self.member_id,
            sequence=self.sequence,
            lease_ms=self.lease_ms,
            epoch=self.epoch,
            held=self.held,
            leaving=self.leaving,
            streams=tuple(self.streams),
            overdue=self.overdue,
        )


class CliqueRow(msgspec.Struct, frozen=True, kw_only=True):
    """`handovers` is the number of slots that are being handed over."""

    clique: str
    epoch: int
    members: int
    handovers: int
    changed_ms: int


class CliqueList(msgspec.Struct, frozen=True, kw_only=True):
    cliques: list[CliqueRow]


class CliqueMemberFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`share` is the part of all slots that it owns, `revoking` the number of slots that it has still to hand over,
    `overdue` the number of slots that wait for an on_release which has not returned in time, `in_flight` the number of
    messages that it holds, by stream."""

    worker: str
    member_id: str
    since_ms: int
    lease_ms: int
    lease_left_ms: int
    slots: int
    share: float
    revoking: int
    overdue: int
    leaving: bool
    streams: list[str]
    in_flight: dict[str, int]


class CliqueStreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a stream by state, as of a queue; null while a leader does not answer. Before a worker has asked
    for messages, all that the topic has are available. `dead_letters` counts the records of the dead-letter topic, also
    those of other queues on the stream; null if the caller may not see that topic."""

    stream: str
    partitions: int
    undone: int | None
    available: int | None
    leased: int | None
    deferred: int | None
    dead_letter_topic: str
    dead_letters: int | None


class CliqueFacts(msgspec.Struct, frozen=True, kw_only=True):
    clique: str
    epoch: int
    changed_ms: int
    slots: int
    handovers: int
    members: list[CliqueMemberFacts]
    streams: list[CliqueStreamFacts]
