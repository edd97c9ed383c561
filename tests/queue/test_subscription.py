"""Which messages a subscriber is sent, and the effects of its acks."""

from collections.abc import Sequence

import pytest

from penstock.queue.subscription import Ack, Position, Subscriber, SubscriberSettings, Times
from penstock.queue.subscription_metadata import decode_done, encode_metadata, is_subscription
from penstock.queue.subscription_ranges import DoneRanges
from penstock.types import TopicPartition

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
NEVER = Times(None, None)


def subscriber(*positions: Position, credit: int = 100, **settings: int) -> Subscriber:
    return Subscriber(SubscriberSettings(credit=credit, **settings), positions or (Position(ORDERS, 0),))


def offer(
    one: Subscriber,
    offsets: Sequence[int],
    *,
    at: int = 0,
    key: TopicPartition = ORDERS,
    end: int | None = None,
    stop: int | None = None,
    times: dict[int, Times] | None = None,
) -> list[int]:
    """The offsets that are sent."""
    rows = one.offer(
        at,
        key,
        offsets,
        times or {},
        stop=len(offsets) if stop is None else stop,
        end=offsets[-1] + 1 if end is None else end,
    )
    return [offsets[row] for row in rows]


def first_undone(one: Subscriber, key: TopicPartition = ORDERS) -> int:
    return next(position.offset for position in one.positions() if position.key == key)


# --- order and credit


def test_messages_are_sent_in_log_order_and_reading_continues_behind_them() -> None:
    one = subscriber()
    assert offer(one, [0, 1, 2]) == [0, 1, 2]
    assert one.next_offset(ORDERS) == 3


def test_no_more_is_sent_than_the_credit_allows_and_the_rest_stays_unread() -> None:
    one = subscriber(credit=2)
    assert offer(one, [0, 1, 2]) == [0, 1]
    assert one.next_offset(ORDERS) == 2
    assert offer(one, [0, 1, 2]) == []
    assert one.ack(ORDERS, 0) is Ack.NEW
    assert offer(one, [0, 1, 2]) == [2]


def test_one_credit_is_shared_by_all_lanes() -> None:
    one = subscriber(Position(ORDERS, 0), Position(PAYMENTS, 0), credit=3)
    assert offer(one, [0, 1]) == [0, 1]
    assert offer(one, [0, 1], key=PAYMENTS) == [0]


def test_lowering_the_credit_revokes_no_message() -> None:
    one = subscriber(credit=3)
    offer(one, [0, 1, 2])
    one.set_credit(1)
    assert one.credit_left == 0
    one.ack(ORDERS, 1)
    assert one.credit_left == 0
    one.ack(ORDERS, 2)
    assert one.credit_left == 1


def test_a_full_frame_leaves_the_rest_of_the_page_for_the_next_one() -> None:
    one = subscriber()
    assert offer(one, [0, 1, 2, 3], stop=2, end=9) == [0, 1]
    assert one.next_offset(ORDERS) == 2
    assert offer(one, [0, 1, 2, 3], end=9) == [2, 3]
    assert one.next_offset(ORDERS) == 9


# --- acks


def test_only_an_ack_moves_the_position() -> None:
    one = subscriber()
    offer(one, [0, 1, 2])
    assert first_undone(one) == 0
    assert not one.has_changes
    assert one.ack(ORDERS, 1) is Ack.NEW
    assert one.take_changes() == [Position(ORDERS, 2)]
    assert not one.has_changes


def test_a_repeated_ack_changes_nothing() -> None:
    one = subscriber()
    offer(one, [0, 1, 2])
    one.ack(ORDERS, 1)
    assert one.ack(ORDERS, 1) is Ack.REPEATED
    assert one.ack(ORDERS, 0) is Ack.REPEATED
    assert first_undone(one) == 2


def test_an_unsent_message_cannot_be_acked() -> None:
    one = subscriber(credit=1)
    offer(one, [0, 1])
    assert one.ack(ORDERS, 1) is Ack.NOT_SENT
    assert one.ack(ORDERS, 10**12) is Ack.NOT_SENT
    assert first_undone(one) == 0


def test_gaps_in_the_log_need_no_ack() -> None:
    one = subscriber()
    assert offer(one, [3, 5], end=9) == [3, 5]
    assert one.take_changes() == [Position(ORDERS, 3, ((4, 5), (6, 9)))]
    one.ack(ORDERS, 5)
    assert first_undone(one) == 9


def test_an_ack_covers_earlier_messages_in_the_order_of_sending() -> None:
    one = subscriber()
    assert offer(one, [0, 1, 2], times={0: Times(50, None)}) == [1, 2]
    assert one.pop_due(50) == (ORDERS, 0)
    assert one.send_due(50, ORDERS, 0)
    one.ack(ORDERS, 2)  # was sent before 0
    assert one.take_changes() == [Position(ORDERS, 0, ((1, 3),))]
    one.ack(ORDERS, 0)
    assert first_undone(one) == 3


# --- deferred messages


def test_a_message_that_is_not_due_is_skipped_and_sent_when_it_is_due() -> None:
    one = subscriber()
    assert offer(one, [0, 1], at=10, times={0: Times(50, None)}) == [1]
    assert one.next_due_ms == 50
    assert one.pop_due(49) is None
    assert one.pop_due(50) == (ORDERS, 0)
    assert one.send_due(51, ORDERS, 0)


def test_due_messages_are_sent_in_the_order_of_their_due_times() -> None:
    one = subscriber()
    offer(one, [0, 1, 2], times={0: Times(70, None), 1: Times(50, None), 2: Times(60, None)})
    assert [one.pop_due(100) for _ in range(4)] == [(ORDERS, 1), (ORDERS, 2), (ORDERS, 0), None]


def test_a_due_message_waits_for_credit() -> None:
    one = subscriber(credit=1)
    offer(one, [0, 1], times={0: Times(50, None)})
    assert one.next_due_ms is None
    assert one.pop_due(60) is None
    one.ack(ORDERS, 1)
    assert one.pop_due(60) == (ORDERS, 0)
    assert one.credit_left == 0  # it is being read


def test_reading_stops_at_the_limit_of_deferred_messages() -> None:
    one = subscriber(max_deferred=2)
    times = {offset: Times(50 + offset, None) for offset in range(3)}
    assert offer(one, [0, 1, 2, 3], times=times) == []
    assert one.next_offset(ORDERS) == 2
    assert one.pop_due(50) == (ORDERS, 0)
    assert offer(one, [0, 1, 2, 3], times=times) == [3]


def test_a_due_message_that_has_expired_meanwhile_is_done() -> None:
    one = subscriber()
    offer(one, [0], times={0: Times(50, 60)})
    one.pop_due(70)
    one.skip(ORDERS, 0)
    assert first_undone(one) == 1
    assert not one.send_due(70, ORDERS, 0)


def test_expired_messages_are_not_sent_and_block_nothing() -> None:
    one = subscriber()
    times = {0: Times(None, 10), 1: Times(50, 10), 2: Times(None, 11)}
    assert offer(one, [0, 1, 2], at=10, times=times) == [2]
    assert first_undone(one) == 2


# --- the start of the log, partitions that are added and dropped


def test_messages_deleted_by_retention_are_done_in_any_state() -> None:
    one = subscriber()
    offer(one, [0, 1, 2, 3], times={0: Times(50, None), 1: Times(40, None)})
    one.pop_due(40)
    one.trimmed(ORDERS, 3)
    assert first_undone(one) == 3
    assert one.credit_left == 99  # only 3 is unacked
    assert not one.send_due(40, ORDERS, 1)
    assert one.pop_due(60) is None


def test_a_dropped_lane_returns_its_credit_and_sends_nothing_more() -> None:
    one = subscriber(Position(ORDERS, 0), Position(PAYMENTS, 0), credit=2)
    offer(one, [0, 1])
    offer(one, [5], key=PAYMENTS, times={5: Times(9, None)})
    one.drop(ORDERS)
    one.drop(PAYMENTS)
    assert one.credit_left == 2
    assert one.ack(ORDERS, 0) is Ack.REPEATED
    assert one.pop_due(10) is None
    assert offer(one, [2]) == []
    assert one.take_changes() == []


def test_unreadable_messages_are_skipped() -> None:
    one = subscriber()
    one.unreadable(ORDERS, 7)
    assert one.next_offset(ORDERS) == 7
    assert first_undone(one) == 7


# --- missed acks


def test_the_oldest_unacked_message_sets_the_deadline() -> None:
    one = subscriber(Position(ORDERS, 0), Position(PAYMENTS, 0), ack_timeout_ms=100)
    assert one.ack_due_ms is None
    offer(one, [0], at=10)
    offer(one, [0], at=20, key=PAYMENTS)
    assert one.ack_due_ms == 110
    one.ack(ORDERS, 0)
    assert one.ack_due_ms == 120
    one.ack(PAYMENTS, 0)
    assert one.ack_due_ms is None


# --- stored positions


def test_messages_acked_behind_a_deferred_one_are_not_sent_again_after_a_restart() -> None:
    one = subscriber()
    offer(one, [0, 1, 2, 3], times={1: Times(50, None)})
    one.ack(ORDERS, 2)
    [stored] = one.take_changes()
    mark = encode_metadata(1000, stored.offset, stored.done, 4096)
    again = subscriber(Position(ORDERS, stored.offset, tuple(decode_done(stored.offset, mark))))
    assert offer(again, [1, 2, 3], times={1: Times(50, None)}) == [3]
    assert again.pop_due(50) == (ORDERS, 1)


def test_stored_ranges_that_do_not_fit_are_dropped_from_the_end() -> None:
    done = [(10, 12), (20, 23), (30, 34)]
    whole = encode_metadata(1000, 5, done, 4096)
    assert decode_done(5, whole) == done
    assert decode_done(5, encode_metadata(1000, 5, done, len(whole) - 1)) == done[:2]
    assert decode_done(5, encode_metadata(1000, 5, done, len("penstock-subscription ttl=1000"))) == []
    assert encode_metadata(1000, 5, done, 10) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "anything",
        "penstock-subscription",
        "penstock-subscription ttl=x done=1+1",
        "penstock-subscription ttl=1 done=a",
    ],
)
def test_commit_metadata_of_other_programs_is_ignored(text: str) -> None:
    assert decode_done(5, text) == []


def test_the_metadata_of_a_subscription_is_recognized() -> None:
    assert is_subscription(encode_metadata(1000, 0, (), 100))
    assert not is_subscription("my own text")


def test_adjacent_ranges_are_merged_and_the_position_moves_over_them() -> None:
    done = DoneRanges(0)
    assert done.add(2, 4)
    assert done.add(6, 8)
    assert done.add(4, 6)
    assert list(done.ranges()) == [(2, 8)]
    assert not done.add(3, 7)
    assert 2 in done
    assert 8 not in done
    assert done.add(0, 2)
    assert done.first_undone == 8
    assert len(done) == 0
