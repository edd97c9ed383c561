"""The error codes that each version of an API knows.

The coordinator answers one canonical code. Clients of older versions do not know the newer codes, and treat a code that
they do not know as fatal or, worse, as retriable for ever.

- PRODUCER_FENCED: another producer has taken over. Older versions get INVALID_PRODUCER_EPOCH. So do Produce and
  TxnOffsetCommit in all versions, as in Kafka.
- TRANSACTION_ABORTABLE: the client must abort this transaction and may go on with the next (KIP-890). Older versions
  get INVALID_TXN_STATE, which is fatal for them.
- GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH: TxnOffsetCommit before version 6 knows only ILLEGAL_GENERATION for a member
  that is none any more (KIP-1319).
"""

from enum import IntEnum

from penstock.errors import ErrorCode


class TransactionApi(IntEnum):
    """Kafka's keys of the APIs that answer errors of transactions."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


KNOWS_FENCED_FROM = {
    TransactionApi.INIT_PRODUCER_ID: 4,
    TransactionApi.ADD_PARTITIONS_TO_TXN: 2,
    TransactionApi.ADD_OFFSETS_TO_TXN: 2,
    TransactionApi.END_TXN: 2,
}
"""The first version that knows PRODUCER_FENCED; no version of the other APIs does."""

KNOWS_ABORTABLE_FROM = {
    TransactionApi.PRODUCE: 11,
    TransactionApi.INIT_PRODUCER_ID: 5,
    TransactionApi.ADD_PARTITIONS_TO_TXN: 5,
    TransactionApi.ADD_OFFSETS_TO_TXN: 4,
    TransactionApi.END_TXN: 4,
    TransactionApi.TXN_OFFSET_COMMIT: 4,
}


KNOWS_GROUP_ERRORS_FROM = {TransactionApi.TXN_OFFSET_COMMIT: 6}
_GROUP_ERRORS = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH})


def wire_error(error: ErrorCode, api: TransactionApi, version: int) -> ErrorCode:
    """The code to answer a request of this version with."""
    if error is ErrorCode.PRODUCER_FENCED:
        first = KNOWS_FENCED_FROM.get(api)
        return error if first is not None and version >= first else ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE_FROM[api]:
        return ErrorCode.INVALID_TXN_STATE
    if error in _GROUP_ERRORS and version < KNOWS_GROUP_ERRORS_FROM.get(api, 0):
        return ErrorCode.ILLEGAL_GENERATION
    return error
