"""Transaction: the durable state of one transactional id, as a value with transitions.

The fields are those of Kafka's log, and one more: `last_epoch`. Rules about the producer's identity:

 1. A client is only ever given epochs below 32,767. The last one is left for the coordinator, so that it can always
    fence: it aborts with an epoch that is one higher than the client's.
 2. `previous_producer_id` and `last_epoch` name the producer from which the present one came by the client's own
    request: InitProducerId with an expected producer, EndTxn of V2, or an abort by timeout. A request of that producer
    is a repetition, whose response was lost. If another client has taken over, `last_epoch` is -1: a producer that was
    fenced must not get the epoch of its successor.
 3. As soon as the present producer adds partitions, it has seen the response: `last_epoch` is -1 from then on, and a
    late repetition is fenced.
 4. When an EndTxn of V2 uses up the last epoch, the markers still carry the old producer id with epoch 32,767, and the
    client goes on as `next_producer_id` with epoch 0.

Kafka does not store `last_epoch`, so there a repeated InitProducerId is fenced after a change of the coordinator.

An attempt (`attempts.py`) is a producer of its *owner*, lent for one *version* of the owner's output. Its transaction
has no timeout of its own while it is lent: the coordinator waits for its owner.
"""

from typing import Any

import msgspec

from penstock.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DECIDED,
    EMPTY,
    IDLE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    TRANSITIONS,
    TransactionState,
)
from penstock.transactions.values import NO_EPOCH, NO_PRODUCER_ID, Dialect
from penstock.types import Producer, TopicPartition

MAX_EPOCH = 32_767
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
NO_TIME = -1
NO_VERSION = -1
NEVER_MS = 2**31 - 1
"""The timeout of a transaction that an external coordinator ends (KIP-939): it is never aborted by time."""

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transactional id. Transitions return the next value; the log has each before memory has it."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    updated_ms: int
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    dialect: int = Dialect.V1
    """Of the client that made the last change: a number that Kafka defines, see `Dialect`."""
    owner: str = ""
    """The transactional id that lends this producer; empty if it is not an attempt."""
    version: int = NO_VERSION
    """An attempt: the version for which it is lent, or NO_VERSION. Others: the last version that is committed."""
    other_tags: tuple[tuple[int, bytes], ...] = ()
    """Tagged fields of versions that we do not know. They are kept."""

    # --- facts

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether no client may be given another epoch of this producer id (1)."""
        return self.epoch >= LAST_CLIENT_EPOCH

    def is_current(self, producer: Producer) -> bool:
        """Whether this is the producer that a client was given last. No client was given epoch 32,767 (1)."""
        return producer == self.producer and producer.epoch <= LAST_CLIENT_EPOCH

    def is_repeated(self, producer: Producer) -> bool:
        """Whether this is the producer that the present one was before (2)."""
        return producer.epoch != NO_EPOCH and producer == Producer(self.previous_producer_id, self.last_epoch)

    @property
    def is_lent(self) -> bool:
        return self.owner != "" and self.version != NO_VERSION

    @property
    def times_out_ms(self) -> int | None:
        if self.state is not ONGOING or self.timeout_ms == NEVER_MS or self.is_lent:
            return None
        return self.start_ms + self.timeout_ms

    # --- transitions

    def initialised(
        self, now_ms: int, timeout_ms: int, producer: Producer, came_from: Producer
    ) -> "Transaction":
        """A client has asked for a producer, and is `producer` from now on. `came_from`: the one that it was so far,
        without an epoch if it was none (2)."""
        return self.moved(
            EMPTY,
            now_ms,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            previous_producer_id=came_from.producer_id,
            last_epoch=came_from.epoch,
            timeout_ms=timeout_ms,
            start_ms=NO_TIME,
        )

    def with_partitions(
        self, now_ms: int, added: frozenset[TopicPartition], dialect: Dialect
    ) -> "Transaction":
        return self.moved(
            ONGOING,
            now_ms,
            partitions=self.partitions | added,
            start_ms=now_ms if self.state in IDLE else self.start_ms,
            last_epoch=NO_EPOCH,
            dialect=dialect,
        )

    def fenced(self, now_ms: int, *, by_other: bool) -> "Transaction":
        """The coordinator aborts. `by_other`: because another client takes over (2)."""
        fence = self.moved(
            PREPARE_EPOCH_FENCE,
            now_ms,
            epoch=min(self.epoch + 1, MAX_EPOCH),
            last_epoch=NO_EPOCH if by_other else self.epoch,
            dialect=Dialect.V2,
        )
        return fence.moved(PREPARE_ABORT, now_ms)

    def ended(self, now_ms: int, *, commit: bool) -> "Transaction":
        """EndTxn of V1."""
        return self.moved(PREPARE_COMMIT if commit else PREPARE_ABORT, now_ms, dialect=Dialect.V1)

    def ended_with_bump(
        self, now_ms: int, *, commit: bool, next_producer_id: int = NO_PRODUCER_ID
    ) -> "Transaction":
        """EndTxn of V2. Without a transaction there is nothing to mark, and the start is only there because a record
        of this state has one."""
        return self.moved(
            PREPARE_COMMIT if commit else PREPARE_ABORT,
            now_ms,
            epoch=self.epoch + 1,
            last_epoch=self.epoch,
            next_producer_id=next_producer_id,
            start_ms=now_ms if self.state in IDLE else self.start_ms,
            dialect=Dialect.V2,
        )

    def taken_back(self, now_ms: int, *, commit: bool) -> "Transaction":
        """The owner has decided about this attempt. Its task can write nothing more, and it may be lent again once its
        markers are written."""
        if self.state is not ONGOING:
            epoch = min(self.epoch + 1, MAX_EPOCH)
            return self.moved(EMPTY, now_ms, epoch=epoch, last_epoch=NO_EPOCH, version=NO_VERSION)
        if not commit:
            return self.fenced(now_ms, by_other=True)
        return msgspec.structs.replace(self.ended_with_bump(now_ms, commit=True), last_epoch=NO_EPOCH)

    def completed(self, now_ms: int) -> "Transaction":
        """All markers are written. The client may have a new producer id from now on (4)."""
        done = COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT
        return self.moved(
            done,
            now_ms,
            producer_id=self.successor.producer_id,
            epoch=self.successor.epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
        )

    @property
    def successor(self) -> Producer:
        """The producer that the client is after this transaction."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer
        return Producer(self.next_producer_id, 0)

    def moved(self, state: TransactionState, now_ms: int, **changes: Any) -> "Transaction":
        assert state in TRANSITIONS[self.state], f"{self.state.title} -> {state.title}"
        changes.setdefault("previous_producer_id", self.producer_id)
        if self.owner and state in DECIDED:  # its task no longer has it, whichever client ended it
            changes["version"] = NO_VERSION
        return msgspec.structs.replace(self, state=state, updated_ms=now_ms, **changes)
