"""The state of queues as a core: claims fence out older drivers, and replies wait for the log."""

from uuid import UUID

import pytest

from penstock.effects import Effect, KeyValue, Persist, Reply
from penstock.errors import ErrorCode, KafkaError
from penstock.queue import Claimed, Fence, QueueKey
from penstock.queue.state_records import Head, encode_head
from penstock.queue.state_store import QueueStateStore
from penstock.types import Term

QUEUE = QueueKey("workers", UUID(int=7), 0)
OTHER = QueueKey("workers", UUID(int=8), 0)
HEAD, CHUNK = b"\x00", b"\x01\x00\x00\x00\x00\x00\x00\x00\x01"


class CoreHarness:
    """A core with a log that writes on request."""

    def __init__(self, log: list[KeyValue] | None = None) -> None:
        self.core = QueueStateStore()
        self.log: list[KeyValue] = list(log or [])
        self.in_flight: list[Persist] = []
        self.replies: dict[object, object] = {}
        for key, value in self.log:
            self.core.replay(key, value)
        assert self.core.loaded(0) == []

    def happens(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.replies
                self.replies[effect.token] = effect.result
            else:
                self.in_flight.append(effect)

    def flush(self, *, ok: bool = True) -> None:
        while self.in_flight:
            write = self.in_flight.pop(0)
            self.log += write.records if ok else ()
            self.happens(self.core.persisted(0, write.id, ok))

    def claim(self, term: int, queue: QueueKey = QUEUE) -> Claimed:
        token = object()
        self.happens(self.core.claim(token, queue, term))
        self.flush()
        claimed = self.replies[token]
        assert isinstance(claimed, Claimed)
        return claimed

    def save(self, fence: Fence, number: int, value: bytes, queue: QueueKey = QUEUE) -> None:
        self.happens(self.core.save("save", queue, fence, number, [(CHUNK, value)]))
        self.flush()
        assert self.replies.pop("save") is None

    def restarted(self) -> "CoreHarness":
        return CoreHarness(self.log)


def refused(harness: CoreHarness, fence: Fence, number: int) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        harness.core.save("late", QUEUE, fence, number, [(CHUNK, b"late")])
    return refusal.value.code


def test_a_claim_returns_the_saved_state_also_after_a_restart() -> None:
    harness = CoreHarness()
    fence, parts, opened = harness.claim(3)
    assert (fence, parts, opened) == (Fence(3, 1), [], [])
    harness.save(fence, 1, b"state")
    assert harness.claim(3) == (Fence(3, 2), [(CHUNK, b"state")], [])
    assert harness.restarted().claim(4) == (Fence(4, 3), [(CHUNK, b"state")], [])


def test_a_claim_replies_only_when_its_record_is_committed() -> None:
    harness = CoreHarness()
    harness.happens(harness.core.claim("claim", QUEUE, 3))
    assert harness.replies == {}
    harness.flush()
    assert harness.replies.keys() == {"claim"}


def test_only_the_newest_fence_may_save() -> None:
    harness = CoreHarness()
    old = harness.claim(3).fence
    harness.claim(3)
    assert refused(harness, old, 1) is ErrorCode.FENCED_STATE_EPOCH
    assert refused(harness.restarted(), old, 1) is ErrorCode.FENCED_STATE_EPOCH
    with pytest.raises(KafkaError, match="term 3"):
        harness.core.claim("older", QUEUE, 2)


def test_a_claim_superseded_by_another_during_its_write_is_refused() -> None:
    harness = CoreHarness()
    harness.happens(harness.core.claim("first", QUEUE, 3))
    harness.happens(harness.core.claim("second", QUEUE, 4))
    harness.flush()
    assert isinstance(harness.replies["first"], KafkaError)
    assert harness.replies["second"] == (Fence(4, 2), [], [])


def test_a_late_save_does_not_undo_a_newer_one() -> None:
    harness = CoreHarness()
    fence = harness.claim(3).fence
    harness.save(fence, 2, b"second")
    assert refused(harness, fence, 1) is ErrorCode.FENCED_STATE_EPOCH
    harness.save(fence, 2, b"second")
    assert harness.claim(3).parts == [(CHUNK, b"second")]


def test_a_failed_save_is_reported_and_the_core_must_be_replaced() -> None:
    harness = CoreHarness()
    fence = harness.claim(3).fence
    harness.happens(harness.core.save("save", QUEUE, fence, 1, [(CHUNK, b"state")]))
    harness.flush(ok=False)
    problem = harness.replies["save"]
    assert isinstance(problem, KafkaError)
    assert problem.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.core.applies_early
    assert harness.restarted().claim(3).parts == []


def test_a_reset_leaves_the_head_only_and_fences_out_the_driver() -> None:
    harness = CoreHarness()
    fence = harness.claim(3).fence
    harness.save(fence, 1, b"state")
    harness.happens(harness.core.reset("reset", QUEUE, 500, 9))
    harness.flush()
    assert refused(harness, fence, 2) is ErrorCode.FENCED_STATE_EPOCH
    head = encode_head(Head(Term(9), 500))
    assert harness.restarted().claim(3).parts == harness.claim(3).parts == [(HEAD, head)]
    assert harness.core.start_offsets(None) == harness.core.start_offsets("workers") == [(QUEUE, 500)]
    assert harness.core.start_offsets("others") == []


def test_a_deleted_queue_leaves_no_records() -> None:
    harness = CoreHarness()
    for queue in (QUEUE, OTHER):
        fence = harness.claim(3, queue).fence
        harness.save(fence, 1, b"state", queue)
    assert harness.core.topic_ids() == {QUEUE.topic_id, OTHER.topic_id}
    harness.happens(harness.core.forget("forget", harness.core.queues_of(frozenset({QUEUE.topic_id}))))
    harness.flush()
    assert harness.core.topic_ids() == harness.restarted().core.topic_ids() == {OTHER.topic_id}
    assert harness.restarted().claim(1) == (Fence(1, 1), [], [])


def test_only_committed_heads_are_reported() -> None:
    harness = CoreHarness()
    harness.happens(harness.core.reset("reset", QUEUE, 500))
    harness.happens(harness.core.committed_heads("heads"))
    harness.happens(harness.core.reset("later", QUEUE, 600))
    assert harness.replies == {}
    harness.flush()
    assert harness.replies["heads"] == [(QUEUE, Head(Term(-1), 500))]
