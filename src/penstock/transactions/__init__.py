"""Transactions: the coordinator of transactional producers (KIP-98, 360, 447, 588 and 890) as a state machine.
Sans-I/O."""

from penstock.transactions.coordinator import TransactionCoordinator
from penstock.transactions.listing import state_filter
from penstock.transactions.states import TransactionState
from penstock.transactions.transaction import NEVER_MS
from penstock.transactions.values import (
    NO_PRODUCER,
    NO_PRODUCER_ID,
    AddRequest,
    CommitVersionRequest,
    DecisionResult,
    Dialect,
    EndedTotals,
    EndRequest,
    ErrorResult,
    InitRequest,
    LendRequest,
    LendResult,
    ProducerIdNeeded,
    ProducerResult,
    Result,
    RollbackRequest,
    SendMarkers,
    TransactionDescription,
    TransactionListing,
    VerifyResult,
)
from penstock.transactions.wire_errors import TransactionApi, wire_error
from penstock.types import Producer

__all__ = [
    "NEVER_MS",
    "NO_PRODUCER",
    "NO_PRODUCER_ID",
    "AddRequest",
    "CommitVersionRequest",
    "DecisionResult",
    "Dialect",
    "EndRequest",
    "EndedTotals",
    "ErrorResult",
    "InitRequest",
    "LendRequest",
    "LendResult",
    "Producer",
    "ProducerIdNeeded",
    "ProducerResult",
    "Result",
    "RollbackRequest",
    "SendMarkers",
    "TransactionApi",
    "TransactionCoordinator",
    "TransactionDescription",
    "TransactionListing",
    "TransactionState",
    "VerifyResult",
    "state_filter",
    "wire_error",
]
