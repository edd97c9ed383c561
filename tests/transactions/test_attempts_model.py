"""For any order of tasks, decisions, replays, crashes, time and disk faults: one decision commits a version as a whole,
and an attempt has one outcome."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.transactions import Producer, SendMarkers
from penstock.transactions.transaction import LAST_CLIENT_EPOCH
from tests.transactions.owner_harness import OWNER, Owner
from tests.transactions.transaction_harness import (
    INVOICES,
    ORDERS,
    TIMEOUT_MS,
    TransactionHarness,
    decoded,
)

VERSIONS = st.integers(0, 4)
Winners = frozenset[Producer]


class RandomAttempts(RuleBasedStateMachine):
    """Two drivers of one owner and their tasks do anything in any order."""

    @initialize()
    def start(self) -> None:
        self.sent: list[SendMarkers] = []
        """By the coordinators before the present one."""
        self.lent: dict[Producer, int] = {}
        self.open: list[Producer] = []
        self.asked: dict[int, set[Winners]] = {}
        """The winners that any driver has named, by version."""
        self.acked: dict[int, Winners] = {}
        """The winners of decisions that were acknowledged as the first."""
        self.owner = Owner(TransactionHarness(limits=Limits(max_attempts=6)))

    @property
    def harness(self) -> TransactionHarness:
        return self.owner.harness

    # --- tasks

    @rule(version=VERSIONS)
    def lend(self, version: int) -> None:
        result = self.owner.asks_to_lend(version)
        if result is not None and result.error is ErrorCode.NONE and not result.is_committed:
            assert result.producer not in self.lent, "it was lent before"
            assert result.producer.epoch <= LAST_CLIENT_EPOCH
            self.lent[result.producer] = version

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), both=st.booleans())
    def write(self, data: st.DataObject, both: bool) -> None:
        producer = data.draw(st.sampled_from(sorted(self.lent)))
        partitions = (ORDERS, INVOICES) if both else (ORDERS,)
        if self.owner.writes(producer, *partitions) is ErrorCode.NONE:
            self.open.append(producer)

    # --- drivers

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), version=VERSIONS)
    def commit(self, data: st.DataObject, version: int) -> None:
        mine = sorted({one for one in self.open if self.lent[one] == version})
        winners = frozenset(data.draw(st.lists(st.sampled_from(mine), max_size=3)) if mine else [])
        self.asked.setdefault(version, set()).add(winners)
        result = self.owner.commits(version, winners)
        if result is not None and result.error is ErrorCode.NONE and not result.was_committed:
            assert version not in self.acked, "committed twice"
            assert all(version > other for other in self.acked), "not in ascending order"
            self.acked[version] = winners

    @rule(version=VERSIONS)
    def rollback(self, version: int) -> None:
        self.owner.rolls_back(version)

    @rule()
    def renew(self) -> None:
        self.owner.renews()

    # --- the world

    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        if self.harness.sent:
            self.harness.marks(data.draw(st.sampled_from(self.harness.sent)))

    @rule(duration_ms=st.sampled_from([1, 1_000, TIMEOUT_MS - 1, TIMEOUT_MS]))
    def wait(self, duration_ms: int) -> None:
        self.harness.passes(duration_ms)

    @rule(disk=st.sampled_from(["prompt", "slow", "full"]))
    def change_disk(self, disk: str) -> None:
        self.harness.disk = disk

    @rule(writes=st.integers(1, 3))
    def flush(self, writes: int) -> None:
        self.harness.flush(writes)

    @rule()
    def crash(self) -> None:
        """Writes that are under way are lost. Those who asked for them get no answer."""
        self.sent += self.harness.sent
        self.owner = Owner(self.harness.restarted())

    # --- what must hold

    @invariant()
    def an_attempt_has_one_outcome(self) -> None:
        outcomes: dict[Producer, bool] = {}
        for message in (*self.sent, *self.harness.sent):
            assert outcomes.setdefault(message.producer, message.commit) is message.commit

    @invariant()
    def what_is_committed_was_decided_as_a_whole(self) -> None:
        for version, committed in self.committed().items():
            assert committed in self.asked[version]
            assert self.acked.get(version, committed) == committed

    @invariant()
    def acknowledged_decisions_stay(self) -> None:
        found = self.committed()
        for version, winners in self.acked.items():
            assert found.get(version, frozenset()) == winners

    def committed(self) -> dict[int, Winners]:
        """By the log: a decision is one batch, so every prefix of the log that ends with a batch has it whole."""
        found: dict[int, set[Producer]] = {}
        for key, value in self.harness.durable:
            if value is not None and b".attempt-" in key and decoded(value).state.name == "PREPARE_COMMIT":
                marker = decoded(value).producer
                winner = Producer(marker.producer_id, marker.epoch - 1)
                found.setdefault(self.lent.get(winner, -1), set()).add(winner)
        return {version: frozenset(winners) for version, winners in found.items()}

    def teardown(self) -> None:
        """Everything calms down: no transaction stays open."""
        if not hasattr(self, "owner"):
            return
        self.harness.disk = "prompt"
        self.harness.flush()
        self.harness.passes(2 * TIMEOUT_MS)
        self.owner.marks_all()
        assert not list(self.harness.coordinator.open_transactions())
        self.what_is_committed_was_decided_as_a_whole()
        assert self.owner.core.id_of(OWNER, Producer(-1, -1)) == OWNER


RandomAttempts.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestRandomAttempts = RandomAttempts.TestCase
