"""Settlements within transactions, in the store of queues' states: kept until their transaction ends, applied once."""

import pytest

from penstock.effects import Effect, KeyValue, Persist, Reply
from penstock.errors import ErrorCode, KafkaError
from penstock.queue import NO_FENCE, Claimed, Fence, QueueKey
from penstock.queue.state_records import settlement_suffix
from penstock.queue.state_store import QueueStateStore
from penstock.types import Producer
from tests.queue.test_state_store import CHUNK, HEAD, OTHER, QUEUE

ONE, TWO = settlement_suffix(1, 1), settlement_suffix(1, 2)
ADA, BOB = Producer(7, 0), Producer(8, 0)

Entry = tuple[int | None, KeyValue] | tuple[int, bool]
"""A record with its producer, or a marker: the producer's id, and whether it commits."""


class StoreHarness:
    """A store with the log of its partition."""

    def __init__(self, log: list[Entry] | None = None) -> None:
        self.core = QueueStateStore()
        self.log: list[Entry] = list(log or [])
        self.in_flight: list[Persist] = []
        self.replies: dict[object, object] = {}
        self.fence = NO_FENCE
        for entry in self.log:
            self._replay(*entry)

    def _replay(self, producer_id: int | None, content: KeyValue | bool) -> None:
        if isinstance(content, bool):
            assert producer_id is not None
            self.core.replay_marker(producer_id, commit=content)
        elif producer_id is None:
            self.core.replay(*content)
        else:
            self.core.replay_pending(producer_id, *content)

    def happens(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.replies
                self.replies[effect.token] = effect.result
            elif isinstance(effect, Persist):
                self.in_flight.append(effect)

    def flush(self, *, ok: bool = True) -> None:
        while self.in_flight:
            write = self.in_flight.pop(0)
            producer_id = None if write.producer is None else write.producer.producer_id
            self.log += [(producer_id, record) for record in write.records] if ok else ()
            self.happens(self.core.persisted(0, write.id, ok))

    def claim(self, queue: QueueKey = QUEUE) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """The stored parts, and the open settlements. Later calls use the fence of the last claim."""
        self.happens(self.core.claim("claim", queue, 1))
        self.flush()
        claimed = self.replies.pop("claim")
        assert isinstance(claimed, Claimed)
        self.fence = claimed.fence
        return dict(claimed.parts), dict(claimed.open_settlements)

    def settle(self, suffix: bytes = ONE, producer: Producer = ADA, queue: QueueKey = QUEUE) -> None:
        self.happens(self.core.settle("settle", queue, self.fence, producer, suffix, b"done"))
        self.flush()
        assert self.replies.pop("settle") is None

    def ends(self, producer: Producer = ADA, *, commit: bool) -> None:
        self.log.append((producer.producer_id, commit))
        self.happens(self.core.transaction_ended(0, producer.producer_id, commit=commit))

    def watch(self, *suffixes: bytes, token: object = "watch") -> object:
        """The reply, None if there is none yet."""
        self.happens(self.core.watch(token, QUEUE, self.fence, suffixes))
        return self.replies.pop(token, None)

    def save(self, *parts: tuple[bytes, bytes | None]) -> None:
        self.happens(self.core.save("save", QUEUE, self.fence, 1, parts))
        self.flush()
        assert self.replies.pop("save") is None

    def restarted(self) -> "StoreHarness":
        return StoreHarness(self.log)


def test_a_settlement_is_in_every_claim_until_its_transaction_ends() -> None:
    store = StoreHarness()
    store.claim()
    store.settle()
    assert store.claim() == ({}, {ONE: b"done"})
    assert store.restarted().claim() == ({}, {ONE: b"done"})


@pytest.mark.parametrize("restarts", [False, True])
def test_a_committed_settlement_is_stored_until_a_save_deletes_it(restarts: bool) -> None:
    store = StoreHarness()
    store.claim()
    store.settle()
    store.ends(commit=True)
    store = store.restarted() if restarts else store
    assert store.claim() == ({ONE: b"done"}, {})
    store.save((CHUNK, b"chunk"), (ONE, None))
    assert store.claim() == ({CHUNK: b"chunk"}, {})
    assert store.restarted().claim() == ({CHUNK: b"chunk"}, {})


@pytest.mark.parametrize("restarts", [False, True])
def test_an_aborted_settlement_leaves_nothing(restarts: bool) -> None:
    store = StoreHarness()
    store.claim()
    store.settle()
    store.ends(commit=False)
    store = store.restarted() if restarts else store
    assert store.claim() == ({}, {})


def test_a_watch_is_answered_when_the_first_transaction_ends() -> None:
    store = StoreHarness()
    store.claim()
    store.settle(ONE, ADA)
    store.settle(TWO, BOB)
    assert store.watch(ONE, TWO) is None
    store.ends(BOB, commit=True)
    assert store.replies.pop("watch") == [(TWO, True)]
    assert store.watch(ONE) is None
    store.ends(ADA, commit=False)
    assert store.replies.pop("watch") == [(ONE, False)]


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_is_known_after_a_restart(commit: bool) -> None:
    store = StoreHarness()
    store.claim()
    store.settle()
    store.ends(commit=commit)
    store = store.restarted()
    store.claim()
    assert store.watch(ONE) == [(ONE, commit)]


def test_a_second_watch_takes_the_place_of_the_first() -> None:
    store = StoreHarness()
    store.claim()
    store.settle()
    assert store.watch(ONE, token="first") is None
    assert store.watch(ONE, token="second") is None
    assert store.replies.pop("first") == []
    store.ends(commit=True)
    assert store.replies.pop("second") == [(ONE, True)]


def test_only_the_newest_driver_settles_and_watches() -> None:
    store = StoreHarness()
    store.claim()
    old = store.fence
    store.claim()
    for request in (
        lambda: store.core.settle("late", QUEUE, old, ADA, ONE, b"late"),
        lambda: store.core.watch("late", QUEUE, old, [ONE]),
        lambda: store.core.settle("late", OTHER, Fence(1, 1), ADA, ONE, b"late"),
    ):
        with pytest.raises(KafkaError) as refused:
            request()
        assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH


def test_a_settlement_that_is_repeated_counts_once() -> None:
    store = StoreHarness()
    store.claim()
    store.happens(store.core.settle("first", QUEUE, store.fence, ADA, ONE, b"done"))
    store.happens(store.core.settle("again", QUEUE, store.fence, ADA, ONE, b"done"))
    store.flush()
    assert store.replies == {"first": None, "again": None}
    store.ends(commit=True)
    store.ends(commit=True)
    assert store.claim() == ({ONE: b"done"}, {})


def test_a_settlement_that_could_not_be_written_is_none() -> None:
    store = StoreHarness()
    store.claim()
    store.happens(store.core.settle("settle", QUEUE, store.fence, ADA, ONE, b"done"))
    store.flush(ok=False)
    assert isinstance(store.replies.pop("settle"), KafkaError)
    store.ends(commit=True)
    assert store.claim() == ({}, {})


@pytest.mark.parametrize("is_written", [True, False])
def test_a_queue_that_is_reset_forgets_its_open_settlements(is_written: bool) -> None:
    store = StoreHarness()
    store.claim()
    store.happens(store.core.settle("settle", QUEUE, store.fence, ADA, ONE, b"done"))
    if is_written:
        store.flush()
    store.happens(store.core.reset("reset", QUEUE, 5))
    store.flush()
    assert (store.replies["settle"] is None) is is_written
    store.ends(commit=True)
    for each in (store.restarted(), store):
        parts, opened = each.claim()
        assert (set(parts), opened) == ({HEAD}, {})


def test_the_marker_of_a_voided_settlement_decides_about_no_other() -> None:
    store = StoreHarness()
    store.claim()
    store.settle(ONE, ADA)
    store.happens(store.core.forget("forget", [QUEUE]))
    store.flush()
    store.claim()  # a queue of the same name, whose claims are counted from 1 again
    store.settle(ONE, BOB)
    store.ends(ADA, commit=True)
    assert store.claim() == ({}, {ONE: b"done"})
    assert store.restarted().claim() == ({}, {ONE: b"done"})


def test_the_state_of_a_deleted_topic_goes_with_its_open_settlements() -> None:
    store = StoreHarness()
    store.claim()
    store.settle()
    assert store.core.topic_ids() == {QUEUE.topic_id}
    store.happens(store.core.forget("forget", store.core.queues_of(frozenset({QUEUE.topic_id}))))
    store.flush()
    store.ends(commit=True)
    for each in (store, store.restarted()):
        assert each.core.topic_ids() == set()


def test_a_transaction_ends_in_all_queues_of_the_partition() -> None:
    store = StoreHarness()
    store.claim(OTHER)
    store.settle(queue=OTHER)
    store.claim(QUEUE)
    store.settle()
    store.ends(commit=True)
    assert store.claim(QUEUE) == store.claim(OTHER) == ({ONE: b"done"}, {})
