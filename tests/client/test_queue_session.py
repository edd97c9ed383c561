"""A consumer of a queue without a network: what it asks for, says and gives up, told as what happens to it."""

from itertools import pairwise

import pytest

from penstock.client.errors import Closed, Denied, Garbled, LeaseLost, Unreachable
from penstock.client.queue_session import Credit, QueueSession
from penstock.client.received_record import ReceivedRecord
from penstock.client.session import ConnectionLoss, Disconnect, FindNodes
from tests.client.frames import A, B, Promise, chance, dialled, frame, jobs, offsets, said, step, take_all

LEASE_S = 40.0
GONE = ConnectionLoss("the network is down")


def new_session(**changes: object) -> "QueueSession[ReceivedRecord]":
    settings = {"make": ReceivedRecord, "random": chance(), "credit": Credit(10, 10), **changes}
    return QueueSession("workers", ["orders"], **settings)  # type: ignore[arg-type]


def working(*elsewhere: str, lease_s: float = LEASE_S, exclusive: bool | None = False) -> str:
    away = [{"topic": "orders", "partition": 1, "url": url} for url in elsewhere]
    return frame("working", consumer="me", lease_ms=int(lease_s * 1000), elsewhere=away, exclusive=exclusive)


@pytest.fixture
def session() -> "QueueSession[ReceivedRecord]":
    """One that works at node A since time 0, over link 1."""
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.received(1, working(), 0.0)
    step(session, 0.0)
    return session


def test_it_asks_where_the_nodes_are_and_introduces_itself() -> None:
    session = new_session(standby=True)
    assert step(session, 0.0) == [FindNodes()]
    session.found([A, B], 0.0)
    assert dialled(step(session, 0.0)) == [(1, "ws://a:8080/v1/work")]
    session.connected(1, 0.0)
    [first] = said(step(session, 0.0))
    assert first["queue"] == "workers"
    assert first["topics"] == ["orders"]
    assert first["credit"] == 10
    assert first["encoding"] == "batch"
    assert first["standby"] is True


def test_it_fetches_ahead_only_when_it_knows_that_the_queue_is_shared() -> None:
    session = new_session(credit=Credit(100, 1))
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    assert [one["credit"] for one in said(step(session, 0.0))] == [1]
    session.received(1, working(exclusive=True), 0.0)
    assert said(step(session, 0.0)) == []
    session.received(1, working(exclusive=False), 1.0)  # it was altered
    assert said(step(session, 1.0)) == [{"type": "credit", "credit": 100}]
    session.received(1, working(B, exclusive=False), 1.5)
    assert said(step(session, 1.5)) == []
    session.received(1, working(exclusive=True), 2.0)
    assert said(step(session, 2.0)) == [{"type": "credit", "credit": 1}]


def test_a_session_that_is_drained_asks_for_nothing_whatever_the_queue_is() -> None:
    session = new_session(credit=Credit(100, 1))
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.drain()
    step(session, 0.0)
    session.received(1, working(exclusive=False), 0.1)
    assert said(step(session, 0.1)) == []


def test_a_broker_that_does_not_know_returning_is_not_troubled_with_it(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, working(exclusive=None), 0.5)
    session.received(1, jobs(1, 2), 1.0)
    session.drain()
    [settle] = said(step(session, 2.0), "settle")
    assert (settle["retry"], settle["delay_ms"]) == ([[1, 2]], 0)
    assert "return" not in settle


def test_each_node_that_leads_something_is_connected_once(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, working("ws://b:8080/v1/work", "ws://b:8080/v1/work"), 1.0)
    assert dialled(step(session, 1.0)) == [(2, "ws://b:8080/v1/work")]
    session.received(1, working("ws://b:8080/v1/work"), 2.0)
    assert step(session, 2.0) == []


def test_only_what_was_acquired_is_handed_out(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(3, 5, deliveries=2, held=[2, 3, 4, 5, 6]), 1.0)
    taken = take_all(session)
    assert offsets(taken) == [3, 5]
    assert taken[0].deliveries == 2
    assert taken[0].value == b"v3"
    assert session.take() is None


def test_what_is_said_at_once_travels_in_one_frame(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2, 3, 5), 1.0)
    tokens = [Promise() for _ in range(4)]
    for item, promise in zip(take_all(session), tokens, strict=True):
        action = "reject" if item.offset == 2 else "accept"
        session.settle(item, action, None, promise, 1.0)
    [settle] = said(step(session, 1.0))
    assert settle["accept"] == [[1, 1], [3, 3], [5, 5]]
    assert settle["reject"] == [[2, 2]]
    assert not session.is_settled
    assert not any(promise.is_done for promise in tokens)
    session.received(1, frame("settled", number=settle["number"]), 1.1)
    step(session, 1.1)
    assert session.is_settled
    assert all(promise.is_done and promise.error is None for promise in tokens)


def test_each_delay_has_a_frame_of_its_own(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2, 3), 1.0)
    for item, delay_ms in zip(take_all(session), (50, None, 50), strict=True):
        session.settle(item, "retry", delay_ms, None, 1.0)
    frames = said(step(session, 1.0))
    assert [(one.get("delay_ms"), one["retry"]) for one in frames] == [
        (50, [[1, 1], [3, 3]]),
        (None, [[2, 2]]),
    ]


def test_leases_are_renewed_while_jobs_are_in_hand_and_no_longer(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1, 2, 3), 1.0)
    first = session.take()
    assert first is not None
    session.settle(first, "accept", None, None, 2.0)
    step(session, 2.0)
    assert session.wake_at() == LEASE_S / 4
    assert said(step(session, LEASE_S / 4)) == []  # nothing is as old as that yet
    [renewal] = said(step(session, LEASE_S / 2))
    assert renewal["renew"] == [[2, 3]]
    assert "accept" not in renewal


def test_leases_that_become_shorter_are_renewed_sooner(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1), 1.0)
    take_all(session)
    session.received(1, working(lease_s=2.0), 2.0)
    step(session, 2.0)
    assert session.wake_at() == 2.5
    assert [one["renew"] for one in said(step(session, 2.5))] == [[[1, 1]]]


def test_what_the_broker_has_taken_back_is_not_handed_out(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2), 1.0)
    [renewal] = said(step(session, LEASE_S))
    over = {"code": "lease_over", "message": "too late", "refused": [[1, 1]]}
    session.received(1, frame("settled", number=renewal["number"], error=over), LEASE_S)
    assert offsets(take_all(session)) == [2]


def test_no_job_gets_older_than_half_of_its_lease_before_its_renewal(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    renewed_at = 9.9
    session.received(1, jobs(1), renewed_at)
    for tenth in range(100, 3_000):
        now = tenth / 10
        if said(step(session, now), "settle"):
            assert now - renewed_at <= LEASE_S / 2 + 0.1
            renewed_at = now
    assert renewed_at > 250


def test_a_job_that_is_settled_is_not_renewed_in_the_same_breath(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1, 2), 0.0)
    first = session.take()
    assert first is not None
    promise, renewal = Promise(), Promise()
    session.settle(first, "renew", None, renewal, 10.0)
    session.settle(first, "accept", None, promise, 10.0)
    [settle] = said(step(session, 10.0))
    assert settle["accept"] == [[1, 1]]
    assert settle["renew"] == [[2, 2]]
    assert renewal.is_done
    assert not promise.is_done


def test_one_late_job_does_not_spoil_the_acks_of_its_neighbours(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1, 2, 3), 1.0)
    tokens = {}
    for item in take_all(session):
        tokens[item.offset] = Promise()
        session.settle(item, "accept", None, tokens[item.offset], 1.0)
    [settle] = said(step(session, 1.0))
    assert settle["accept"] == [[1, 3]]
    late = {"code": "lease_over", "message": "too late", "refused": [[1, 3]]}
    session.received(1, frame("settled", number=settle["number"], error=late), 2.0)
    again = said(step(session, 2.0))
    assert [one["accept"] for one in again] == [[[1, 1]], [[2, 2]], [[3, 3]]]
    for one in again:
        offset = one["accept"][0][0]
        error = {**late, "refused": [[2, 2]]} if offset == 2 else None
        session.received(1, frame("settled", number=one["number"], error=error), 3.0)
    step(session, 3.0)
    assert isinstance(tokens[2].error, LeaseLost)
    assert tokens[1].error is None
    assert tokens[3].error is None
    assert session.lost_leases == 1
    assert session.is_settled


def test_runs_that_were_not_refused_are_durable(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 5), 1.0)
    tokens = [Promise(), Promise()]
    for item, promise in zip(take_all(session), tokens, strict=True):
        session.settle(item, "accept", None, promise, 1.0)
    [settle] = said(step(session, 1.0))
    error = {"code": "lease_over", "message": "too late", "refused": [[5, 5]]}
    session.received(1, frame("settled", number=settle["number"], error=error), 2.0)
    step(session, 2.0)
    assert tokens[0].error is None
    assert isinstance(tokens[1].error, LeaseLost)
    assert "too late" in str(tokens[1].error)


def test_a_job_is_settled_once(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1), 1.0)
    [item] = take_all(session)
    session.settle(item, "accept", None, None, 1.0)
    second = Promise()
    session.settle(item, "reject", None, second, 1.0)
    [settle] = said(step(session, 1.0))
    assert "reject" not in settle
    assert isinstance(second.error, LeaseLost)


def test_what_is_said_of_an_earlier_delivery_does_not_settle_the_next_one(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1), 1.0)
    [earlier] = take_all(session)
    session.settle(earlier, "retry", 0, None, 1.0)
    step(session, 1.0)
    session.received(1, jobs(1, deliveries=2), 2.0)
    [again] = take_all(session)
    assert (session.holds(earlier), session.holds(again)) == (False, True)
    late = Promise()
    session.settle(earlier, "accept", None, late, 3.0)
    assert said(step(session, 3.0)) == []
    assert isinstance(late.error, LeaseLost)
    session.settle(again, "accept", None, None, 4.0)
    assert [one["accept"] for one in said(step(session, 4.0))] == [[[1, 1]]]


def test_an_answer_that_came_late_does_not_take_the_next_delivery_away(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1), 1.0)
    [earlier] = take_all(session)
    session.settle(earlier, "accept", None, None, 1.0)
    [settle] = said(step(session, 1.0))
    session.received(1, jobs(1, deliveries=2), 2.0)  # the lease had ended before the ack arrived
    [again] = take_all(session)
    error = {"code": "lease_over", "message": "", "refused": [[1, 1]]}
    session.received(1, frame("settled", number=settle["number"], error=error), 2.1)
    assert session.holds(again)


def test_what_a_lost_connection_held_is_gone_at_once(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2, 3), 1.0)
    unsaid, no_answer_text = session.take(), session.take()
    assert unsaid is not None
    assert no_answer_text is not None
    tokens = [Promise(), Promise()]
    session.settle(no_answer_text, "accept", None, tokens[0], 1.0)
    step(session, 1.0)
    session.settle(unsaid, "accept", None, tokens[1], 1.0)
    session.disconnected(1, GONE, 2.0)
    step(session, 2.0)
    assert all(isinstance(promise.error, LeaseLost) for promise in tokens)
    assert session.take() is None, "the broker has it back: another consumer will get it"
    assert not session.holds(unsaid)
    assert session.is_settled


def test_it_comes_back_after_pauses_that_grow() -> None:
    session = new_session()
    now, dials = 0.0, []
    for connection_id in range(1, 8):
        while not (new := dialled(effects := step(session, now))):
            if FindNodes() in effects:
                session.found([A], now)
            else:
                wake_at = session.wake_at()
                assert wake_at is not None
                now = wake_at
        dials.append(now)
        session.disconnected(connection_id, GONE, now)
        assert new == [(connection_id, "ws://a:8080/v1/work")]
    pauses = [after - before for before, after in pairwise(dials)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 0.2
    assert pauses[-1] > 1


def test_a_node_that_is_away_is_not_tried_again_once_nobody_names_it(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, working("ws://b:8080/v1/work"), 1.0)
    step(session, 1.0)
    session.disconnected(2, GONE, 1.0)
    session.received(1, working(), 1.5)
    assert dialled(step(session, 60.0)) == []
    session.received(1, working("ws://b:8080/v1/work"), 61.0)
    assert dialled(step(session, 61.0)) == [(3, "ws://b:8080/v1/work")]


def test_patience_ends_with_what_is_wrong() -> None:
    session = new_session(reconnect_timeout_s=30.0)
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.disconnected(1, GONE, 1.0)
    step(session, 30.0)
    assert isinstance(session.ended, Unreachable)
    assert "the network is down" in str(session.ended)
    assert session.wake_at() is None


def test_what_a_broker_refuses_for_good_ends_it(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, frame("error", code="unknown_topic", message="there is no topic 'orders'"), 1.0)
    session.disconnected(1, ConnectionLoss("closed", 4404), 1.0)
    assert isinstance(session.ended, Denied)
    assert session.ended.code == "unknown_topic"
    assert step(session, 100.0) == []


@pytest.mark.parametrize("close_code", [1006, 1012, 1013, 4408])
def test_what_may_pass_does_not_end_it(session: "QueueSession[ReceivedRecord]", close_code: int) -> None:
    session.disconnected(1, ConnectionLoss("closed", close_code), 1.0)
    assert session.ended is None
    assert step(session, 100.0) == [FindNodes()]


def test_a_node_that_is_starting_is_asked_again(session: "QueueSession[ReceivedRecord]") -> None:
    session.disconnected(
        1, ConnectionLoss("not ready", denied=Denied("not_ready", "starting", retriable=True)), 1.0
    )
    assert session.ended is None


def test_draining_gives_back_what_nobody_has_taken_and_keeps_what_is_in_hand(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1, 2, 3), 1.0)
    in_hand = session.take()
    assert in_hand is not None
    session.drain()
    frames = said(step(session, 2.0))
    assert frames[:2] == [{"type": "credit", "credit": 0}, {"type": "ping"}]
    assert [one["return"] for one in frames[2:]] == [[[2, 3]]]
    assert "retry" not in frames[2]
    assert session.holds(in_hand)
    session.received(1, jobs(4), 2.5)  # it was under way
    [late] = said(step(session, 2.5))
    assert late["return"] == [[4, 4]]
    session.settle(in_hand, "accept", None, None, 3.0)
    assert [one["accept"] for one in said(step(session, 3.0))] == [[[1, 1]]]


def test_a_drained_session_is_settled_when_nothing_can_be_under_way_any_more(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.drain()
    step(session, 1.0)
    assert not session.is_settled
    session.received(1, jobs(1), 1.1)
    session.received(1, frame("pong"), 1.2)
    [settle] = said(step(session, 1.2))
    assert not session.is_settled
    session.received(1, frame("settled", number=settle["number"]), 1.3)
    assert session.is_settled


def test_a_node_that_is_gone_is_not_waited_for_when_draining(session: "QueueSession[ReceivedRecord]") -> None:
    session.drain()
    step(session, 1.0)
    session.disconnected(1, GONE, 1.1)
    assert session.is_settled


def test_records_that_are_no_longer_there_are_done_with(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2, 3, held=[1, 3]), 1.0)
    assert offsets(take_all(session)) == [1, 3]
    [settle] = said(step(session, 1.0))
    assert settle["accept"] == [[2, 2]]


def test_records_that_nobody_can_read_are_rejected(session: "QueueSession[ReceivedRecord]") -> None:
    rotten = bytearray(jobs(1, 2))
    rotten[-1] ^= 0xFF
    session.received(1, bytes(rotten), 1.0)
    assert session.take() is None
    [settle] = said(step(session, 1.0))
    assert settle["reject"] == [[1, 2]]


def test_closing_resolves_everything_and_hangs_up(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2), 1.0)
    first, second = take_all(session)
    tokens = [Promise(), Promise()]
    session.settle(first, "accept", None, tokens[0], 1.0)
    step(session, 1.0)
    session.end()
    session.end()
    assert Disconnect(1) in step(session, 2.0)
    assert isinstance(tokens[0].error, LeaseLost)
    session.settle(second, "accept", None, tokens[1], 3.0)
    step(session, 3.0)
    assert isinstance(tokens[1].error, Closed)


def test_a_link_that_is_made_after_the_end_is_hung_up() -> None:
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.end()
    step(session, 1.0)
    session.connected(1, 2.0)
    assert step(session, 2.0) == [Disconnect(1)]


def test_frames_of_a_newer_broker_are_left_alone_and_nonsense_is_not(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, frame("weather", sun=True), 1.0)
    assert session.ended is None
    session.received(1, "<html>", 1.0)
    assert isinstance(session.ended, Garbled)
