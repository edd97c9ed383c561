"""Values of the transaction coordinator: its requests, its results, and the markers to write."""

from collections.abc import Mapping
from enum import IntEnum

import msgspec

from penstock.errors import ErrorCode
from penstock.transactions.states import TransactionState
from penstock.types import Producer, TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_EPOCH)


class Dialect(IntEnum):
    """How a client speaks; the numbers are the ones that Kafka stores as the client's transaction version."""

    V1 = 0
    """EndTxn 0-4: the epoch stays the same from transaction to transaction."""
    V2 = 2
    """EndTxn 5 and later (KIP-890): every EndTxn raises the epoch, and its response has the next one."""


class InitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """InitProducerId with a transactional id."""

    transactional_id: str
    timeout_ms: int
    expected: Producer | None = None
    """The producer that the client has been so far and wants to go on as (KIP-360)."""
    new_producer_id: int = NO_PRODUCER_ID
    """An id that no producer has had, if the host has one at hand. See `ProducerIdNeeded`."""


class AddRequest(msgspec.Struct, frozen=True, kw_only=True):
    """AddPartitionsToTxn; AddOffsetsToTxn with the partition of the offsets topic that holds the group's offsets."""

    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]
    dialect: Dialect


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    """EndTxn."""

    transactional_id: str
    producer: Producer
    commit: bool
    dialect: Dialect
    new_producer_id: int = NO_PRODUCER_ID
    """As in InitRequest."""


class ProducerIdNeeded(msgspec.Struct, frozen=True):
    """Nothing was done, because the epochs of the producer id are used up, or the transactional id is new. The host
    makes the same request again with `new_producer_id`. So no id is wasted on requests that need none."""


class ProducerResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to InitRequest and EndRequest: an error, or the producer that the client is from now on."""

    error: ErrorCode = ErrorCode.NONE
    producer: Producer = NO_PRODUCER
    """NO_PRODUCER also after an EndTxn of V1: the client stays the one that it is."""


class ErrorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to AddRequest, for all its partitions, and to an operator's abort."""

    error: ErrorCode = ErrorCode.NONE


class LendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A task asks for a producer of its owner, to write a part of a version of the owner's output."""

    owner: str
    version: int
    timeout_ms: int
    """How long after the last sign of life of the owner its attempts are aborted."""
    new_producer_id: int = NO_PRODUCER_ID
    """As in InitRequest."""


class LendResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to LendRequest: an error, a producer, or that there is nothing to do."""

    error: ErrorCode = ErrorCode.NONE
    producer: Producer = NO_PRODUCER
    is_committed: bool = False
    """The version is committed already: nothing of it must be written again."""
    busy: str = ""
    """With CONCURRENT_TRANSACTIONS: another try is worth while when this id is free (`when_free`)."""


class CommitVersionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The owner decides: these attempts are the version, all others are aborted."""

    owner: str
    version: int
    winners: frozenset[Producer]
    new_producer_id: int = NO_PRODUCER_ID
    """As in InitRequest: for an owner that has decided nothing so far."""


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The owner gives up: all attempts of this version and of earlier ones are aborted."""

    owner: str
    version: int


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to CommitVersionRequest and RollbackRequest."""

    error: ErrorCode = ErrorCode.NONE
    was_committed: bool = False
    """An earlier request has committed this version or a later one."""
    busy: str = ""
    """As in LendResult."""


Result = ProducerResult | ProducerIdNeeded | ErrorResult | LendResult | DecisionResult


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether partitions are part of the producer's open transaction (KIP-890)."""

    errors: Mapping[TopicPartition, ErrorCode]


class SendMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a `Send` effect: write this marker to all these partitions, and report each with
    `markers_written`. The marker's coordinator epoch is the term in which the host leads the core's partition."""

    id: int
    """Grows from message to message of one core. It tells two transactions of one producer and epoch (V1) apart."""
    transactional_id: str
    producer: Producer
    """With the epoch of the marker: every later batch of an older epoch must be refused."""
    commit: bool
    partitions: frozenset[TopicPartition]


class EndedTotals(msgspec.Struct, kw_only=True):
    """How many transactions have ended. A host gives all its cores the same one, so that the numbers do not go back
    when it leads fewer."""

    committed: int = 0
    aborted: int = 0


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id as DescribeTransactions shows it."""

    transactional_id: str
    state: TransactionState
    producer: Producer
    timeout_ms: int
    start_ms: int
    """Of the open transaction or the last one; -1 if there was none since InitProducerId."""
    partitions: frozenset[TopicPartition]
    """While markers are written: those that have none yet."""
    owner: str = ""
    """The owner, if this is an attempt."""
    is_lent: bool = False


class TransactionListing(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id as ListTransactions shows it."""

    transactional_id: str
    producer_id: int
    state: TransactionState
