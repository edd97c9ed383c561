"""The life of a transactional id: eight states, and one table of the transitions.

    Empty ──AddPartitions──▶ Ongoing ──EndTxn(commit)──▶ PrepareCommit ──all markers──▶ CompleteCommit
      ▲                       │ ▲ │                                                          │
      │                       │ │ └──EndTxn(abort)──▶ PrepareAbort ──all markers──▶ CompleteAbort
      │                       │ │                         ▲   ▲                              │
      │     timeout, operator,▼ │                         │   │                              │
      │     newer producer  PrepareEpochFence ────────────┘   │                              │
      │                         │                             └─EndTxn(abort) of V2, without partitions:
      │                         │                               also from Empty, CompleteCommit, CompleteAbort
      └──InitProducerId──── CompleteCommit, CompleteAbort ──AddPartitions──▶ Ongoing

- *Empty*: the id has a producer and no transaction.
- *Ongoing*: the transaction has partitions.
- *PrepareCommit*, *PrepareAbort*: the outcome is in the log and cannot change. Markers are being written to the
  partitions, again after every crash, until all are there.
- *CompleteCommit*, *CompleteAbort*: all markers are written. The state tells a repeated EndTxn from a wrong one.
- *PrepareEpochFence*: the producer's epoch is raised so that the coordinator can abort for it. It exists only within
  one decision, which goes on to PrepareAbort: it is never stored.
- *Dead*: the id expired. It is stored as the deletion of its key.
"""

from enum import IntEnum


class TransactionState(IntEnum):
    """The numbers are the ones that Kafka stores."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that DescribeTransactions and ListTransactions use."""
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD
PREPARE_EPOCH_FENCE = TransactionState.PREPARE_EPOCH_FENCE

TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    DEAD: frozenset(),
    PREPARE_EPOCH_FENCE: frozenset({PREPARE_ABORT}),
}
"""The states that may follow each state. `Transaction.moved` asserts it: any other transition is a bug."""

IDLE = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""There is no transaction: a new one may begin, another producer may take over, the id may expire."""
DECIDED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
"""The outcome is decided and markers are being written."""
STORED = frozenset(TransactionState) - {DEAD, PREPARE_EPOCH_FENCE}
"""States that may be in the log."""
STATES_BY_TITLE = {state.title: state for state in TransactionState}
