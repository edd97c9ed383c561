"""An owner of attempts, as its driver and its tasks use it."""

from collections.abc import Callable, Iterable

from penstock.effects import Effect
from penstock.errors import ErrorCode
from penstock.transactions import (
    AddRequest,
    CommitVersionRequest,
    DecisionResult,
    Dialect,
    ErrorResult,
    LendRequest,
    LendResult,
    Producer,
    ProducerIdNeeded,
    Result,
    RollbackRequest,
    TransactionCoordinator,
)
from penstock.types import TopicPartition
from tests.transactions.transaction_harness import ORDERS, TIMEOUT_MS, TransactionHarness

OWNER = "query"


class Owner:
    """Drivers and tasks of one owner. It asks as the host does: with a new producer id if one is needed."""

    def __init__(self, harness: TransactionHarness, name: str = OWNER) -> None:
        self.harness = harness
        self.name = name

    @property
    def core(self) -> TransactionCoordinator:
        return self.harness.coordinator

    def asks(self, ask: Callable[[int, int, int], list[Effect]]) -> Result | None:
        """None while there is no reply."""
        token = self.harness.asks(lambda now, token: ask(now, token, -1))
        if isinstance(self.harness.replies.get(token), ProducerIdNeeded):
            new = next(self.harness.producer_ids)
            token = self.harness.asks(lambda now, token: ask(now, token, new))
        return self.harness.replies.get(token)

    def asks_to_lend(self, version: int, timeout_ms: int = TIMEOUT_MS) -> LendResult | None:
        def ask(now: int, token: int, new: int) -> list[Effect]:
            request = LendRequest(
                owner=self.name, version=version, timeout_ms=timeout_ms, new_producer_id=new
            )
            return self.core.lend(now, token, request)

        result = self.asks(ask)
        assert result is None or isinstance(result, LendResult)
        return result

    def lends(self, version: int) -> Producer:
        result = self.asks_to_lend(version)
        assert result is not None
        assert result.error is ErrorCode.NONE
        assert not result.is_committed
        return result.producer

    def writes(self, producer: Producer, *partitions: TopicPartition) -> ErrorCode | None:
        """A task's first batches on these partitions, which their leaders add."""
        request = AddRequest(
            transactional_id=self.core.id_of(self.name, producer),
            producer=producer,
            partitions=frozenset(partitions or (ORDERS,)),
            dialect=Dialect.V2,
        )
        token = self.harness.asks(lambda now, token: self.core.add_partitions(now, token, request))
        result = self.harness.replies.get(token)
        assert result is None or isinstance(result, ErrorResult)
        return None if result is None else result.error

    def prepares(self, version: int, *partitions: TopicPartition) -> Producer:
        """A task that has written everything."""
        producer = self.lends(version)
        assert self.writes(producer, *partitions) is ErrorCode.NONE
        return producer

    def commits(self, version: int, winners: Iterable[Producer]) -> DecisionResult | None:
        named = frozenset(winners)

        def ask(now: int, token: int, new: int) -> list[Effect]:
            request = CommitVersionRequest(
                owner=self.name, version=version, winners=named, new_producer_id=new
            )
            return self.core.commit(now, token, request)

        result = self.asks(ask)
        assert result is None or isinstance(result, DecisionResult)
        return result

    def rolls_back(self, version: int) -> DecisionResult | None:
        request = RollbackRequest(owner=self.name, version=version)
        result = self.asks(lambda now, token, new: self.core.rollback(now, token, request))
        assert result is None or isinstance(result, DecisionResult)
        return result

    def renews(self) -> ErrorCode:
        result = self.asks(lambda now, token, new: self.core.renew(now, token, self.name))
        assert isinstance(result, ErrorResult)
        return result.error

    def outcomes(self) -> dict[int, bool]:
        """Of all markers that were sent: producer id and whether the transaction is committed."""
        return {sent.producer.producer_id: sent.commit for sent in self.harness.sent}

    def marks_all(self) -> None:
        """All partitions take their markers."""
        for sent in list(self.harness.sent):
            self.harness.marks(sent)
