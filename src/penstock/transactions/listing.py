"""Transactional ids as DescribeTransactions and ListTransactions show them."""

from collections.abc import Callable, Collection, Iterable, Iterator

from penstock.transactions.states import DEAD, DECIDED, IDLE, STATES_BY_TITLE, TransactionState
from penstock.transactions.store import TransactionalId
from penstock.transactions.transaction import Transaction
from penstock.transactions.values import TransactionDescription, TransactionListing


def describe(each: TransactionalId) -> TransactionDescription | None:
    """None for an id that is just being created or deleted."""
    value = each.committed
    if value is None or each.writing is DEAD:
        return None
    return TransactionDescription(
        transactional_id=each.transactional_id,
        state=value.state,
        producer=value.producer,
        timeout_ms=value.timeout_ms,
        start_ms=value.start_ms,
        partitions=each.unmarked if value.state in DECIDED else value.partitions,
        owner=value.owner,
        is_lent=value.is_lent,
    )


def list_transactions(
    ids: Iterable[TransactionalId],
    now_ms: int,
    *,
    states: Collection[TransactionState],
    producer_ids: Collection[int],
    longer_than_ms: int,
    matches: Callable[[str], bool] | None,
) -> Iterator[TransactionListing]:
    """An empty filter means any. `longer_than_ms` (from 0 on): only transactions that have been open, or are being
    ended, for longer. `matches` tells whether a pattern fits an id: the host chooses the engine for patterns."""
    for each in ids:
        value = each.committed
        if value is None or each.writing is DEAD:
            continue
        if states and value.state not in states:
            continue
        if producer_ids and value.producer_id not in producer_ids:
            continue
        if longer_than_ms >= 0 and _open_ms(now_ms, value) <= longer_than_ms:
            continue
        if matches is None or matches(each.transactional_id):
            yield TransactionListing(
                transactional_id=each.transactional_id, producer_id=value.producer_id, state=value.state
            )


def state_filter(names: Iterable[str]) -> tuple[set[TransactionState], list[str]]:
    """The states with these names, and the names that are unknown: ListTransactions tells them to the client. If all
    names are unknown, nothing may be listed: an empty filter would mean any state."""
    known: set[TransactionState] = set()
    unknown: list[str] = []
    for name in names:
        if name in STATES_BY_TITLE:
            known.add(STATES_BY_TITLE[name])
        else:
            unknown.append(name)
    return known, unknown


def _open_ms(now_ms: int, value: Transaction) -> int:
    return -1 if value.state in IDLE else now_ms - value.start_ms
