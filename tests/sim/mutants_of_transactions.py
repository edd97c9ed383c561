"""Seeded bugs of transactions: coordinators, markers, the last stable offset, offsets, compaction."""

from penstock.groups import open_transactions
from penstock.log import aborted, compaction, compactor, producers
from penstock.log import transactions as log_transactions
from penstock.node.transactions import led_partitions, marker_sender
from penstock.sim.seeds import TRANSACTIONS
from penstock.transactions import ending, store, transaction
from penstock.transactions import producers as transactional_producers
from tests.sim.mutant import Change, Mutant

TRANSACTION_MUTANTS = (
    Mutant(
        "open transactions are shown",
        "readers of committed records read up to the watermark",
        (
            Change(
                log_transactions.Transactions,
                "last_stable",
                "return min(self.first_unstable, high_watermark)",
                "return high_watermark",
            ),
        ),
        level=TRANSACTIONS,
        seeds=10,
    ),
    Mutant(
        "one offset too many is stable",
        "readers get the first batch of an open transaction",
        (
            Change(
                log_transactions.Transactions,
                "last_stable",
                "return min(self.first_unstable, high_watermark)",
                "return min(self.first_unstable + 1, high_watermark)",
            ),
        ),
        level=TRANSACTIONS,
        seeds=10,
    ),
    Mutant(
        "marker counts before it is committed",
        "records are shown whose marker the next leader may not have",
        (
            Change(
                log_transactions.Transactions,
                "first_unstable",
                "return min(self._open_from(), self._ended_from)",
                "return self._open_from()",
            ),
        ),
        level=TRANSACTIONS,
        seeds=20,
    ),
    Mutant(
        "last aborted transaction is not found",
        "readers see records of the aborted transaction at the end of what they read",
        (
            Change(
                aborted.AbortedIndex,
                "between",
                "min(behind + 1, len(self))",
                "min(behind, len(self))",
            ),
        ),
        level=TRANSACTIONS,
        seeds=10,
    ),
    Mutant(
        "first batches are not verified",
        "a batch that comes after its transaction's end begins one that never ends",
        (
            Change(
                led_partitions.LedPartitions,
                "admit",
                "while not partition.log.producers.has_transaction(*producer):",
                "while False:",
            ),
        ),
        level=TRANSACTIONS,
        seeds=15,
    ),
    Mutant(
        "markers end with their coordinator",
        "the next one does not write the markers of a decided transaction",
        (
            Change(
                store.TransactionStore,
                "loaded",
                "self._follow(now_ms, each)",
                "each.committed is not None and each.committed.state not in DECIDED and self._follow(now_ms, each)",
            ),
        ),
        level=TRANSACTIONS,
        seeds=15,
    ),
    Mutant(
        "refused markers count as written",
        "a transaction stays open on a partition whose leader refused the marker",
        (Change(marker_sender, "_is_over", "return code == ErrorCode.NONE", "return True"),),
        level=TRANSACTIONS,
        seeds=20,
    ),
    Mutant(
        "timeouts do not abort",
        "the transaction of a producer that died stays open",
        (
            Change(
                store.TransactionStore,
                "_plan_timeout",
                "if due_ms is not None:",
                "if False:",
            ),
        ),
        level=TRANSACTIONS,
        seeds=100,
    ),
    Mutant(
        "aborts do not fence",
        "a producer whose transaction was aborted for it goes on writing in the next one",
        (
            Change(
                transaction.Transaction,
                "fenced",
                "epoch=min(self.epoch + 1, MAX_EPOCH)",
                "epoch=self.epoch",
            ),
        ),
        level=TRANSACTIONS,
        seeds=150,
    ),
    Mutant(
        "successors have the same epoch",
        "a zombie writes in the transactions of its successor",
        (
            Change(
                transactional_producers,
                "_next_producer",
                "return Producer(value.producer_id, value.epoch + 1)",
                "return value.producer",
            ),
        ),
        level=TRANSACTIONS,
        seeds=10,
    ),
    Mutant(
        "ends are told at once",
        "a client hears of a commit that the log does not have",
        (
            Change(
                ending.Ending,
                "_write",
                "self._store.write(each, value, written)",
                "written(0, True); self._store.write(each, value, lambda now_ms, ok: None)",
            ),
        ),
        level=TRANSACTIONS,
        seeds=400,
    ),
    Mutant(
        "aborted offsets count",
        "the offsets of an aborted transaction are committed",
        (Change(open_transactions.OpenTransactions, "end", "if commit:", "if True:"),),
        level=TRANSACTIONS,
        seeds=30,
    ),
    Mutant(
        "compaction of open transactions",
        "a record is superseded by one that may be aborted",
        (
            Change(
                compactor.Compactor,
                "_stable_segments",
                "or segment.next_offset > unstable_from",
                "",
            ),
        ),
        level=TRANSACTIONS,
        seeds=20,
    ),
    Mutant(
        "aborted records supersede others",
        "compaction removes the last committed record of a key",
        (
            Change(
                compaction.CompactionPlan,
                "_read_keys",
                "or header.control or self._aborted.covers(header)",
                "or header.control",
            ),
        ),
        level=TRANSACTIONS,
        seeds=40,
    ),
    Mutant(
        "markers go before their batches",
        "compaction removes a marker while records of its transaction are left",
        (
            Change(
                compaction.CompactionPlan,
                "_clean_marker",
                "self._with_batches.discard(header.producer_id)",
                "return Cleaned(None)",
            ),
        ),
        level=TRANSACTIONS,
        seeds=40,
    ),
    Mutant(
        "snapshots without open transactions",
        "a replica that restarts does not know which transactions are open",
        (
            Change(
                producers.ProducerStates,
                "transaction_rows",
                "list(transactions.open.items()),",
                "[],",
            ),
        ),
        level=TRANSACTIONS,
        seeds=20,
    ),
)
