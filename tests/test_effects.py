"""The outbox of a durable core: effects in order, and one report per write."""

from penstock.effects import PERSIST_RECORDS_MAX, Outbox, Persist, Reply, Send
from penstock.types import Producer


def test_effects_are_taken_once_and_in_order() -> None:
    outbox = Outbox()
    outbox.reply("a", 1)
    outbox.persist([(b"k", b"v")], lambda now_ms, ok: None)
    outbox.send("news")
    outbox.reply("b", 2)
    first, second, sent, third = outbox.take()
    assert first == Reply(token="a", result=1)
    assert isinstance(second, Persist)
    assert second.records == ((b"k", b"v"),)
    assert sent == Send(message="news")
    assert third == Reply(token="b", result=2)
    assert outbox.take() == []


def test_writes_are_reported_in_their_order_for_any_order_of_confirmations() -> None:
    outbox, told = Outbox(), list[tuple[str, int, bool]]()
    outbox.persist([(b"1", b"")], lambda now_ms, ok: told.append(("first", now_ms, ok)))
    outbox.persist([(b"2", None)], lambda now_ms, ok: told.append(("second", now_ms, ok)))
    first, second = (one.id for one in outbox.take() if isinstance(one, Persist))
    outbox.persisted(5, second, True)
    assert told == []
    outbox.persisted(6, first, False)
    assert told == [("first", 6, False), ("second", 6, True)]


def test_a_large_write_is_split_and_reported_once_with_the_outcome_of_all_parts() -> None:
    outbox, told = Outbox(), list[bool]()
    records = [(b"%d" % number, None) for number in range(2 * PERSIST_RECORDS_MAX + 1)]
    outbox.persist(records, lambda now_ms, ok: told.append(ok))
    writes = [one for one in outbox.take() if isinstance(one, Persist)]
    assert [len(one.records) for one in writes] == [PERSIST_RECORDS_MAX, PERSIST_RECORDS_MAX, 1]
    for number, one in enumerate(writes):
        assert told == []
        outbox.persisted(0, one.id, number != 1)
    assert told == [False]


def test_a_write_without_records_is_reported_in_its_place() -> None:
    outbox, told = Outbox(), list[str]()
    outbox.persist([(b"1", b"")], lambda now_ms, ok: told.append("write"))
    outbox.persist([], lambda now_ms, ok: told.append("barrier"))
    write, barrier = (one for one in outbox.take() if isinstance(one, Persist))
    assert barrier.records == ()
    outbox.persisted(0, barrier.id, True)
    outbox.persisted(0, write.id, True)
    assert told == ["write", "barrier"]


def test_all_parts_of_a_large_write_belong_to_the_same_transaction() -> None:
    outbox, producer = Outbox(), Producer(7, 1)
    records = [(b"%d" % number, None) for number in range(PERSIST_RECORDS_MAX + 1)]
    outbox.persist(records, lambda now_ms, ok: None, producer)
    outbox.persist(records[:1], lambda now_ms, ok: None)
    writes = [one for one in outbox.take() if isinstance(one, Persist)]
    assert [one.producer for one in writes] == [producer, producer, None]
