"""Attempts of transactional ids: how a program with many tasks, like Spark, writes each version of its output once.

Tasks get producers here and write over Kafka's protocol, with the transactional id of the path and the producer that
they got; the driver decides here which of them count. `transactions/attempts.py` has the rules.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.node import Node
from penstock.node.calls.messages.transactions import (
    CommitVersion,
    LendAttempt,
    RenewAttempts,
    RollbackVersion,
)
from penstock.web.api.routing import Call, NoBody

WINNERS_MAX = 998
"""As many as `limits.max_attempts` may allow."""

TransactionalIdName = Annotated[
    str, Meta(min_length=1, max_length=4096, description="The transactional id that owns the attempts.")
]
Version = Annotated[
    int,
    Meta(
        ge=0,
        le=2**63 - 1,
        description="Which part of the output this is: a number that grows, a micro-batch.",
    ),
]
Struct = msgspec.Struct


class OwnerParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    transactional_id: TransactionalIdName


class AttemptRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`timeout_ms`: all attempts are aborted when their owner gives no sign of life for so long."""

    version: Version
    timeout_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 600_000


class ProducerFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    producer_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    producer_epoch: Annotated[int, Meta(ge=0, le=2**15 - 1)]


class AttemptFacts(Struct, frozen=True, kw_only=True):
    """`producer` is null if the version is committed already: then nothing of it must be written again."""

    producer: ProducerFacts | None
    committed: bool


class CommitBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`winners`: the attempts that are the version. All others are aborted."""

    version: Version
    winners: Annotated[list[ProducerFacts], Meta(max_length=WINNERS_MAX)]


class RollbackBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Version


class DecisionFacts(Struct, frozen=True, kw_only=True):
    """`was_committed`: an earlier request has committed this version or a later one."""

    was_committed: bool


class RenewedFacts(Struct, frozen=True, kw_only=True):
    transactional_id: str


class TransactionsApi:
    """Operations on the attempts of a transactional id."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def lend_attempt(self, call: Call[OwnerParams, AttemptRequest]) -> AttemptFacts:
        request = LendAttempt(call.params.transactional_id, call.body.version, call.body.timeout_ms)
        lent = await self._node.attempts.lend(request, caller=call.caller)
        if lent.is_committed:
            return AttemptFacts(producer=None, committed=True)
        producer = ProducerFacts(producer_id=lent.producer_id, producer_epoch=lent.producer_epoch)
        return AttemptFacts(producer=producer, committed=False)

    async def commit_version(self, call: Call[OwnerParams, CommitBody]) -> DecisionFacts:
        winners = [(one.producer_id, one.producer_epoch) for one in call.body.winners]
        request = CommitVersion(call.params.transactional_id, call.body.version, winners)
        decided = await self._node.attempts.commit(request, caller=call.caller)
        return DecisionFacts(was_committed=decided.was_committed)

    async def rollback_version(self, call: Call[OwnerParams, RollbackBody]) -> DecisionFacts:
        request = RollbackVersion(call.params.transactional_id, call.body.version)
        decided = await self._node.attempts.rollback(request, caller=call.caller)
        return DecisionFacts(was_committed=decided.was_committed)

    async def renew_attempts(self, call: Call[OwnerParams, NoBody]) -> RenewedFacts:
        owner = call.params.transactional_id
        await self._node.attempts.renew(RenewAttempts(owner), caller=call.caller)
        return RenewedFacts(transactional_id=owner)
