"""Attempts at work: requests of tasks and drivers to the coordinator of their owner, wherever it is.

`transactions/attempts.py` has the rules. Every request may be repeated: a repeated decision changes nothing. If the
response with an attempt is lost, no task uses that attempt, and the next decision takes it back.
"""

from typing import TypeVar

from msgspec.structs import replace

from penstock.effects import Effect
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import Calls, TransactionCoordinatorOf, methods
from penstock.node.calls.messages.transactions import (
    CommitVersion,
    DecidedVersion,
    LendAttempt,
    LentAttempt,
    RenewAttempts,
    RollbackVersion,
)
from penstock.node.calls.methods import Method
from penstock.node.transactions.manager import TransactionManager
from penstock.transactions import (
    CommitVersionRequest,
    DecisionResult,
    ErrorResult,
    LendRequest,
    LendResult,
    Producer,
    RollbackRequest,
    TransactionCoordinator,
)
from penstock.types import Caller

Q = TypeVar("Q")
R = TypeVar("R")

MARKED_SECONDS = 2.0
"""How long the answer to a commit waits for the markers, which take some milliseconds. The version is committed without
them; with them, readers see it when the driver hears of it, and its attempts can be lent for the next one."""

_NOT_OPEN = (
    "an attempt of version {version} of {owner!r} is not open: its owner gave no sign of life for longer than the "
    "timeout, or another decision came first; nothing was committed"
)
_TEXTS = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "attempts of {owner!r} are just being changed: try again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the coordinator of {owner!r} could not write",
    ErrorCode.POLICY_VIOLATION: "{owner!r} has as many attempts as max_attempts and max_transactional_ids allow",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "timeout_ms is above transactions.max_timeout_ms of the nodes",
    ErrorCode.INVALID_REQUEST: "{owner!r} cannot have attempts: its name is too long, or it is an attempt itself",
    ErrorCode.INVALID_TXN_STATE: _NOT_OPEN,
}


class AttemptRouter:
    """Serves requests for owners that this node coordinates, and sends all others to their coordinator."""

    def __init__(self, transactions: TransactionManager, calls: Calls) -> None:
        self._transactions = transactions
        self._calls = calls
        calls.serve(methods.LEND_ATTEMPT, self._lend)
        calls.serve(methods.COMMIT_VERSION, self._commit)
        calls.serve(methods.ROLLBACK_VERSION, self._rollback)
        calls.serve(methods.RENEW_ATTEMPTS, self._renew)

    # --- for callers; KafkaError if the coordinator refuses, or cannot be reached

    async def lend(self, request: LendAttempt, *, caller: Caller) -> LentAttempt:
        return await self._ask(methods.LEND_ATTEMPT, request, request.owner, caller)

    async def commit(self, request: CommitVersion, *, caller: Caller) -> DecidedVersion:
        return await self._ask(methods.COMMIT_VERSION, request, request.owner, caller)

    async def rollback(self, request: RollbackVersion, *, caller: Caller) -> DecidedVersion:
        return await self._ask(methods.ROLLBACK_VERSION, request, request.owner, caller)

    async def renew(self, request: RenewAttempts, *, caller: Caller) -> None:
        return await self._ask(methods.RENEW_ATTEMPTS, request, request.owner, caller)

    async def _ask(self, method: Method[Q, R], request: Q, owner: str, caller: Caller) -> R:
        await self._transactions.cores.ensure_topic()
        return await self._calls.ask(TransactionCoordinatorOf(owner), method, request, caller=caller)

    # --- at the coordinator

    async def _lend(self, caller: Caller, asked: LendAttempt) -> LentAttempt:
        request = LendRequest(owner=asked.owner, version=asked.version, timeout_ms=asked.timeout_ms)

        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.lend(now_ms, token, replace(request, new_producer_id=new_id))

        result = await self._transactions.ask_with_id(asked.owner, ask, LendResult)
        _check(result.error, asked.owner, asked.version)
        return LentAttempt(result.producer.producer_id, result.producer.epoch, result.is_committed)

    async def _commit(self, caller: Caller, asked: CommitVersion) -> DecidedVersion:
        winners = frozenset(Producer(*one) for one in asked.winners)
        request = CommitVersionRequest(owner=asked.owner, version=asked.version, winners=winners)

        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.commit(now_ms, token, replace(request, new_producer_id=new_id))

        result = await self._transactions.ask_with_id(asked.owner, ask, DecisionResult)
        _check(result.error, asked.owner, asked.version)
        await self._transactions.until_marked(asked.owner, MARKED_SECONDS)
        return DecidedVersion(result.was_committed)

    async def _rollback(self, caller: Caller, asked: RollbackVersion) -> DecidedVersion:
        request = RollbackRequest(owner=asked.owner, version=asked.version)

        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.rollback(now_ms, token, request)

        result = await self._transactions.ask_with_id(asked.owner, ask, DecisionResult)
        _check(result.error, asked.owner, asked.version)
        return DecidedVersion(result.was_committed)

    async def _renew(self, caller: Caller, asked: RenewAttempts) -> None:
        host = await self._transactions.cores.host_of(asked.owner)
        result = await host.ask(
            ErrorResult, lambda now_ms, token: host.core.renew(now_ms, token, asked.owner)
        )
        if result.error:
            raise KafkaError(result.error, f"no attempt of {asked.owner!r} is open")


def _check(error: ErrorCode, owner: str, version: int) -> None:
    if error:
        raise KafkaError(error, _TEXTS.get(error, "").format(owner=owner, version=version))
