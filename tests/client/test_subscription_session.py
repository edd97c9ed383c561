"""A subscription session without a network: order, acks, and redelivery after a lost connection."""

import pytest

from penstock.client import redelivery
from penstock.client.errors import Closed, Denied, LeaseLost
from penstock.client.received_record import ReceivedRecord
from penstock.client.session import REDIRECTS_MAX, ConnectionLoss
from penstock.client.subscription_session import SubscriptionSession
from tests.client.frames import A, Promise, chance, dialled, frame, messages, offsets, said, step, take_all

GONE = ConnectionLoss("the network is down")


def new_session(**changes: object) -> "SubscriptionSession[ReceivedRecord]":
    settings = {
        "make": ReceivedRecord,
        "random": chance(),
        "credit": 10,
        "read_old": True,
        "take_over": False,
        "ack_timeout_ms": 30_000,
        "ttl_ms": 60_000,
        **changes,
    }
    return SubscriptionSession("billing/eu", ["orders"], **settings)  # type: ignore[arg-type]


def attach(session: "SubscriptionSession[ReceivedRecord]", connection_id: int, now: float) -> None:
    """Opens the next connection, up to the answer of the broker."""
    step(session, now)
    session.found([A], now)
    while not dialled(step(session, now)):
        now += 0.1
    session.connected(connection_id, now)
    session.received(
        connection_id,
        frame("subscribed", subscription="billing/eu", positions=[], resumed=connection_id > 1),
        now,
    )
    step(session, now)


@pytest.fixture
def session() -> "SubscriptionSession[ReceivedRecord]":
    """A session that is attached over connection 1."""
    session = new_session()
    attach(session, 1, 0.0)
    return session


def acked(offset: int, **more: object) -> str:
    return frame("acked", positions=[{"topic": "orders", "partition": 0, "offset": offset, **more}])


def test_it_names_itself_in_the_address_and_in_its_first_frame() -> None:
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    assert dialled(step(session, 0.0)) == [(1, "ws://a:8080/v1/push?subscription=billing%2Feu")]
    session.connected(1, 0.0)
    [first] = said(step(session, 0.0))
    assert first["subscription"] == "billing/eu"
    assert first["read_old"] is True
    assert first["take_over"] is False


def test_only_the_last_ack_of_a_partition_is_sent(session: "SubscriptionSession[ReceivedRecord]") -> None:
    session.received(1, messages(1, 2, 3), 1.0)
    session.received(1, messages(7, partition=1), 1.0)
    tokens = []
    for item in take_all(session):
        tokens.append(Promise())
        session.ack(item, tokens[-1])
    frames = said(step(session, 1.0))
    assert [(one["partition"], one["offset"]) for one in frames] == [(0, 3), (1, 7)]
    session.received(1, acked(4), 1.1)
    step(session, 1.1)
    assert [promise.is_done for promise in tokens] == [True, True, True, False]
    assert not session.is_settled


def test_an_ack_waits_until_it_is_durable(session: "SubscriptionSession[ReceivedRecord]") -> None:
    session.received(1, messages(1, 2), 1.0)
    first, second = take_all(session)
    early, late = Promise(), Promise()
    session.ack(first, early)
    session.ack(second, late)
    step(session, 1.0)
    session.received(1, acked(2), 1.1)
    step(session, 1.1)
    assert early.is_done
    assert not late.is_done


def test_acks_above_a_deferred_message_are_durable_in_their_own_right(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(5, 6), 1.0)
    promise = Promise()
    session.ack(take_all(session)[1], promise)
    step(session, 1.0)
    session.received(1, acked(3, done=[[5, 6]]), 1.1)
    step(session, 1.1)
    assert promise.is_done
    assert session.is_settled


def test_untaken_messages_come_again_over_the_next_connection(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2, 3), 1.0)
    assert offsets([item for item in [session.take()] if item]) == [1]
    session.disconnected(1, GONE, 2.0)
    assert session.take() is None
    attach(session, 2, 2.0)
    session.received(2, messages(1, 2, 3), 3.0)
    assert offsets(take_all(session)) == [1, 2, 3]


def test_a_message_that_was_acked_late_is_acked_again_and_not_handed_out_twice(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2, 3), 1.0)
    first, second = session.take(), session.take()
    assert first is not None
    assert second is not None
    session.disconnected(1, GONE, 2.0)
    step(session, 2.0)
    session.found([A], 2.0)
    step(session, 3.0)
    session.disconnected(2, GONE, 3.0)  # the node does not answer yet
    promise = Promise()
    session.ack(second, promise)  # covers the first one as well
    step(session, 3.0)
    assert isinstance(promise.error, LeaseLost)
    attach(session, 3, 3.0)
    session.received(3, messages(1, 2, 3), 4.0)
    assert [one["offset"] for one in said(step(session, 4.0), "ack")] == [2]
    assert offsets(take_all(session)) == [3]


def test_an_ack_that_was_not_durable_in_time_is_sent_again(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2), 1.0)
    promise = Promise()
    session.ack(take_all(session)[1], promise)
    step(session, 1.0)
    session.disconnected(1, GONE, 2.0)
    step(session, 2.0)
    assert isinstance(promise.error, LeaseLost)
    assert not session.is_settled
    attach(session, 2, 2.0)
    session.received(2, messages(1, 2, 3), 3.0)
    assert offsets(take_all(session)) == [3]
    assert [one["offset"] for one in said(step(session, 3.0), "ack")] == [2]
    assert not session.is_settled
    session.received(2, acked(3), 4.0)
    assert session.is_settled


def test_an_already_acked_message_never_acks_an_earlier_one(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(5), 1.0)
    session.ack(take_all(session)[0], None)
    session.disconnected(1, GONE, 2.0)
    attach(session, 2, 2.0)
    session.received(2, messages(4, 5), 3.0)  # 4 was deferred, and is due now
    assert offsets(take_all(session)) == [4, 5]
    assert said(step(session, 3.0), "ack") == []


def welcome(
    session: "SubscriptionSession[ReceivedRecord]", connection_id: int, now: float, **said: object
) -> None:
    """Opens the next connection, with this answer of the broker."""
    step(session, now)
    session.found([A], now)
    while not dialled(step(session, now)):
        now += 0.1
    session.connected(connection_id, now)
    told = {"subscription": "billing/eu", "positions": [], "resumed": True, **said}
    session.received(connection_id, frame("subscribed", **told), now)
    step(session, now)


def take_one(session: "SubscriptionSession[ReceivedRecord]") -> ReceivedRecord:
    item = session.take()
    assert item is not None
    return item


def test_an_ack_counts_after_any_number_of_reconnects(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2), 1.0)
    slow = take_one(session)
    for connection_id in (2, 3, 4):
        session.disconnected(connection_id - 1, GONE, float(connection_id))
        attach(session, connection_id, float(connection_id))
        session.received(connection_id, messages(1, 2), float(connection_id))  # the copies are not taken
    session.ack(slow, None)
    assert [one["offset"] for one in said(step(session, 5.0), "ack")] == [1]
    assert offsets(take_all(session)) == [2]


def test_an_ack_between_two_connections_is_sent_over_the_next(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2), 1.0)
    slow = take_one(session)
    session.disconnected(1, GONE, 2.0)
    attach(session, 2, 2.0)
    session.received(2, messages(1, 2), 2.0)
    session.disconnected(2, GONE, 3.0)
    session.ack(slow, None)
    attach(session, 3, 3.0)
    session.received(3, messages(1, 2), 4.0)
    assert [one["offset"] for one in said(step(session, 4.0), "ack")] == [1]
    assert offsets(take_all(session)) == [2]


def test_a_late_ack_does_not_ack_later_messages(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2, 3), 1.0)
    first = take_one(session)
    take_one(session)
    session.disconnected(1, GONE, 2.0)
    attach(session, 2, 2.0)
    session.ack(first, None)
    session.received(2, messages(1, 2, 3), 3.0)
    assert offsets(take_all(session)) == [2, 3]


def test_messages_behind_a_late_one_are_acked_with_it(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(5), 1.0)
    session.ack(take_one(session), None)
    session.disconnected(1, GONE, 2.0)
    attach(session, 2, 2.0)
    session.received(2, messages(4, 5, 6), 3.0)  # 4 was deferred, and is due now
    session.ack(take_one(session), None)
    assert [one["offset"] for one in said(step(session, 3.0), "ack")] == [5]
    assert offsets(take_all(session)) == [6]


def test_another_message_at_the_same_offset_is_handed_out(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    """The topic was deleted and recreated while the ack was late."""
    session.received(1, messages(1), 1.0)
    late = take_one(session)
    session.disconnected(1, GONE, 2.0)
    attach(session, 2, 2.0)
    session.ack(late, None)
    session.received(2, messages(1, stamp=7_000), 3.0)
    assert offsets(take_all(session)) == [1]
    assert said(step(session, 3.0), "ack") == []


@pytest.mark.parametrize(
    "said_", [{"resumed": False}, {"positions": [{"topic": "orders", "partition": 0, "offset": 0}]}]
)
def test_after_a_reset_all_messages_are_handed_out_again(
    session: "SubscriptionSession[ReceivedRecord]", said_: dict[str, object]
) -> None:
    session.received(1, messages(1, 2), 1.0)
    first, second = take_all(session)
    session.ack(first, None)
    session.received(1, acked(2), 1.0)
    session.ack(second, None)
    session.disconnected(1, GONE, 2.0)
    welcome(session, 2, 2.0, **said_)
    session.received(2, messages(1, 2), 3.0)
    assert offsets(take_all(session)) == [1, 2]


def test_the_memory_of_closed_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivery, "REMEMBERED_MAX", 3)
    session = new_session()
    attach(session, 1, 0.0)
    old: list[ReceivedRecord] = []
    for connection_id in (1, 2, 3):
        session.received(
            connection_id, messages(2 * connection_id, 2 * connection_id + 1), float(connection_id)
        )
        old += take_all(session)
        session.disconnected(connection_id, GONE, float(connection_id))
        attach(session, connection_id + 1, float(connection_id))
    for item in old:
        session.ack(item, None)
    session.received(4, messages(2, 3, 4, 5, 6, 7), 5.0)
    assert offsets(take_all(session)) == [
        2,
        3,
        4,
        5,
        6,
        7,
    ]  # the oldest are forgotten, and acks are never past them
    session.disconnected(4, GONE, 6.0)
    attach(session, 5, 6.0)
    session.received(5, messages(5, 6, 7, 8), 7.0)
    assert offsets(take_all(session)) == [8]


def test_it_follows_redirects_to_its_coordinator() -> None:
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.received(1, frame("elsewhere", url="ws://b:8080/v1/push?subscription=x", node_id=2), 0.0)
    session.disconnected(1, ConnectionLoss("elsewhere", 4421), 0.0)
    assert dialled(step(session, 0.0)) == [(2, "ws://b:8080/v1/push?subscription=billing%2Feu")]
    session.disconnected(2, ConnectionLoss("moved", redirect="http://c:1/v1/push?subscription=x"), 0.0)
    assert dialled(step(session, 0.0)) == [(3, "ws://c:1/v1/push?subscription=billing%2Feu")]


def test_circular_redirects_are_retried_with_a_delay() -> None:
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    for connection_id in range(1, REDIRECTS_MAX + 2):
        assert [number for number, _url in dialled(step(session, 0.0))] == [connection_id]
        session.disconnected(connection_id, ConnectionLoss("elsewhere", redirect=A), 0.0)
    assert dialled(step(session, 0.0)) == []
    assert session.wake_at() is not None


def test_a_subscriber_that_was_too_slow_reconnects_by_itself(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, frame("inactive", reason="ack_timeout", message="no ack"), 40.0)
    session.disconnected(1, ConnectionLoss("inactive", 4408), 40.0)
    assert session.ended is None
    attach(session, 2, 40.0)
    assert session.times_inactive == 1
    assert session.resumed


def test_a_subscriber_whose_login_has_expired_connects_again(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, frame("error", code="login_expired", message="log in again"), 40.0)
    session.disconnected(1, ConnectionLoss("login_expired", 4401), 40.0)
    assert session.ended is None
    attach(session, 2, 40.0)
    assert session.resumed


def test_it_takes_over_from_its_own_session_only() -> None:
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.received(1, frame("error", code="already_active", message="in use"), 0.0)
    session.disconnected(1, ConnectionLoss("already_active", 4409), 0.0)
    assert isinstance(session.ended, Denied)

    session = new_session()
    attach(session, 1, 0.0)
    session.disconnected(1, GONE, 1.0)
    step(session, 1.0)
    session.found([A], 2.0)
    step(session, 2.0)
    session.connected(2, 2.0)
    [first] = said(step(session, 2.0), "subscribe")
    assert first["take_over"] is True


def test_unsubscribing_ends_it_for_good(session: "SubscriptionSession[ReceivedRecord]") -> None:
    promise = Promise()
    session.unsubscribe(promise)
    assert said(step(session, 1.0)) == [{"type": "unsubscribe"}]
    session.received(1, frame("unsubscribed"), 1.1)
    step(session, 1.1)
    assert promise.is_done
    assert promise.error is None
    assert isinstance(session.ended, Closed)


# --- acks that can never be durable


def ack_and_lose_connection(session: "SubscriptionSession[ReceivedRecord]") -> None:
    session.received(1, messages(1, 2), 1.0)
    for item in take_all(session):
        session.ack(item, Promise())
    step(session, 1.0)
    session.disconnected(1, GONE, 2.0)
    step(session, 2.0)
    assert not session.is_settled


def resume(session: "SubscriptionSession[ReceivedRecord]", *, resumed: bool, topic: str) -> None:
    session.found([A], 2.0)
    now = 2.0
    while not dialled(step(session, now)):
        now += 0.1
    session.connected(2, now)
    positions = [{"topic": topic, "partition": 0, "offset": 0}]
    session.received(2, frame("subscribed", subscription="b", positions=positions, resumed=resumed), now)
    step(session, now)


def test_acks_of_a_topic_that_was_deleted_are_not_waited_for(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    session.received(1, messages(1, 2), 1.0)
    [first, _second] = take_all(session)
    promise = Promise()
    session.ack(first, promise)
    step(session, 1.0)
    session.received(1, frame("gone", topic="orders"), 1.1)
    step(session, 1.1)
    assert isinstance(promise.error, LeaseLost)
    assert session.is_settled


def test_acks_of_a_topic_that_was_deleted_meanwhile_are_not_waited_for(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    ack_and_lose_connection(session)
    resume(session, resumed=True, topic="others")
    assert session.is_settled
    assert not session.take_lost_acks(), "its messages do not come again"


def test_acks_are_lost_with_a_subscription_that_begins_again(
    session: "SubscriptionSession[ReceivedRecord]",
) -> None:
    ack_and_lose_connection(session)
    resume(session, resumed=False, topic="orders")
    assert session.is_settled
    assert session.take_lost_acks()
    assert not session.take_lost_acks()
