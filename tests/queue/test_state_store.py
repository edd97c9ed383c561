"""The state of queues as a core: claims fence out older drivers, and replies wait for the log."""

from uuid import UUID

import pytest

from penstock.effects import Effect, KeyValue, Persist, Reply
from penstock.errors import ErrorCode, KafkaError
from penstock.queue import Claimed, Fence, Head, QueueKey, QueueStateStore, encode_head
from penstock.types import Term

QUEUE = QueueKey("workers", UUID(int=7), 0)
OTHER = QueueKey("workers", UUID(int=8), 0)
HEAD, CHUNK = b"\x00", b"\x01\x00\x00\x00\x00\x00\x00\x00\x01"


class Scene:
    """A core with a log that writes when told to."""

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

    def restarted(self) -> "Scene":
        return Scene(self.log)


def refused(scene: Scene, fence: Fence, number: int) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        scene.core.save("late", QUEUE, fence, number, [(CHUNK, b"late")])
    return refusal.value.code


def test_a_claim_returns_what_was_saved_also_after_a_restart() -> None:
    scene = Scene()
    fence, parts = scene.claim(3)
    assert (fence, parts) == (Fence(3, 1), [])
    scene.save(fence, 1, b"state")
    assert scene.claim(3) == (Fence(3, 2), [(CHUNK, b"state")])
    assert scene.restarted().claim(4) == (Fence(4, 3), [(CHUNK, b"state")])


def test_a_claim_replies_only_when_its_record_is_committed() -> None:
    scene = Scene()
    scene.happens(scene.core.claim("claim", QUEUE, 3))
    assert scene.replies == {}
    scene.flush()
    assert scene.replies.keys() == {"claim"}


def test_only_the_newest_fence_may_save() -> None:
    scene = Scene()
    old, _ = scene.claim(3)
    scene.claim(3)
    assert refused(scene, old, 1) is ErrorCode.FENCED_STATE_EPOCH
    assert refused(scene.restarted(), old, 1) is ErrorCode.FENCED_STATE_EPOCH
    with pytest.raises(KafkaError, match="term 3"):
        scene.core.claim("older", QUEUE, 2)


def test_a_claim_that_was_overtaken_while_it_was_written_is_refused() -> None:
    scene = Scene()
    scene.happens(scene.core.claim("first", QUEUE, 3))
    scene.happens(scene.core.claim("second", QUEUE, 4))
    scene.flush()
    assert isinstance(scene.replies["first"], KafkaError)
    assert scene.replies["second"] == (Fence(4, 2), [])


def test_a_save_that_comes_late_does_not_undo_a_later_one() -> None:
    scene = Scene()
    fence, _ = scene.claim(3)
    scene.save(fence, 2, b"second")
    assert refused(scene, fence, 1) is ErrorCode.FENCED_STATE_EPOCH
    scene.save(fence, 2, b"second")
    assert scene.claim(3).parts == [(CHUNK, b"second")]


def test_a_save_that_could_not_be_written_says_so_and_the_core_must_be_replaced() -> None:
    scene = Scene()
    fence, _ = scene.claim(3)
    scene.happens(scene.core.save("save", QUEUE, fence, 1, [(CHUNK, b"state")]))
    scene.flush(ok=False)
    problem = scene.replies["save"]
    assert isinstance(problem, KafkaError)
    assert problem.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.core.applies_early
    assert scene.restarted().claim(3).parts == []


def test_a_reset_leaves_the_head_only_and_fences_out_the_driver() -> None:
    scene = Scene()
    fence, _ = scene.claim(3)
    scene.save(fence, 1, b"state")
    scene.happens(scene.core.reset("reset", QUEUE, 500, 9))
    scene.flush()
    assert refused(scene, fence, 2) is ErrorCode.FENCED_STATE_EPOCH
    head = encode_head(Head(Term(9), 500))
    assert scene.restarted().claim(3).parts == scene.claim(3).parts == [(HEAD, head)]
    assert scene.core.start_offsets(None) == scene.core.start_offsets("workers") == [(QUEUE, 500)]
    assert scene.core.start_offsets("others") == []


def test_a_forgotten_queue_leaves_nothing() -> None:
    scene = Scene()
    for queue in (QUEUE, OTHER):
        fence, _ = scene.claim(3, queue)
        scene.save(fence, 1, b"state", queue)
    assert scene.core.topic_ids() == {QUEUE.topic_id, OTHER.topic_id}
    scene.happens(scene.core.forget("forget", scene.core.queues_of(frozenset({QUEUE.topic_id}))))
    scene.flush()
    assert scene.core.topic_ids() == scene.restarted().core.topic_ids() == {OTHER.topic_id}
    assert scene.restarted().claim(1) == (Fence(1, 1), [])


def test_heads_are_told_when_they_are_committed() -> None:
    scene = Scene()
    scene.happens(scene.core.reset("reset", QUEUE, 500))
    scene.happens(scene.core.committed_heads("heads"))
    scene.happens(scene.core.reset("later", QUEUE, 600))
    assert scene.replies == {}
    scene.flush()
    assert scene.replies["heads"] == [(QUEUE, Head(Term(-1), 500))]
