"""A queue session without a network: its requests, settlements and reconnects, driven by events."""

from itertools import pairwise

import pytest

from penstock.client.errors import Closed, Denied, Garbled, LeaseLost, Unreachable
from penstock.client.queue_session import CliqueClaim, Credit, QueueSession
from penstock.client.received_record import ReceivedRecord
from penstock.client.session import ConnectionLoss, Disconnect, FindNodes
from penstock.client.wire.producer import TransactionIdentity
from penstock.clique.clique_queue import CliqueJob, SuspectJob
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
    """A session that works at node A since time 0, over connection 1."""
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.received(1, working(), 0.0)
    step(session, 0.0)
    return session


def test_it_looks_up_the_nodes_and_introduces_itself() -> None:
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


def test_a_drained_session_asks_for_nothing() -> None:
    session = new_session(credit=Credit(100, 1))
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.drain()
    step(session, 0.0)
    session.received(1, working(exclusive=False), 0.1)
    assert said(step(session, 0.1)) == []


def test_a_broker_that_does_not_support_return_is_not_sent_it(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, working(exclusive=None), 0.5)
    session.received(1, jobs(1, 2), 1.0)
    session.drain()
    [settle] = said(step(session, 2.0), "settle")
    assert (settle["retry"], settle["delay_ms"]) == ([[1, 2]], 0)
    assert "return" not in settle


def test_each_leading_node_has_one_connection(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, working("ws://b:8080/v1/work", "ws://b:8080/v1/work"), 1.0)
    assert dialled(step(session, 1.0)) == [(2, "ws://b:8080/v1/work")]
    session.received(1, working("ws://b:8080/v1/work"), 2.0)
    assert step(session, 2.0) == []


def test_a_job_of_a_clique_has_the_epoch_of_the_table_by_which_it_came() -> None:
    claim = CliqueClaim("w1", "5f0c")
    session = new_session(claim=claim, make=CliqueJob, make_suspect=SuspectJob)
    session.learn(7)
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.connected(1, 0.0)
    session.received(1, working(), 0.0)
    session.received(1, jobs(3, 4, epoch=8, announce=[[4, 4]]), 1.0)
    session.received(1, jobs(5), 1.0)  # of an older broker
    made = [(type(job), getattr(job, "table_epoch", None)) for job in take_all(session)]
    assert made == [(CliqueJob, 8), (SuspectJob, 8), (CliqueJob, 0)]


def test_only_acquired_records_are_handed_out(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(3, 5, deliveries=2, held=[2, 3, 4, 5, 6]), 1.0)
    taken = take_all(session)
    assert offsets(taken) == [3, 5]
    assert taken[0].deliveries == 2
    assert taken[0].value == b"v3"
    assert session.take() is None


def test_settlements_of_a_transaction_are_sent_apart_and_name_it(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, frame("working", lease_ms=40_000, transactions=True), 0.5)
    session.received(1, jobs(1, 2, 3), 1.0)
    first, second, third = take_all(session)
    session.settle(first, "accept", None, None, 1.0)
    promise = Promise()
    billing = TransactionIdentity("billing", 7, 3)
    session.settle(second, "accept", None, promise, 1.0, transaction=billing)
    session.settle(third, "reject", None, None, 1.0, transaction=billing)
    plain, transactional = said(step(session, 1.0), "settle")
    assert (plain["accept"], "transaction" in plain) == ([[1, 1]], False)
    assert (transactional["accept"], transactional["reject"]) == ([[2, 2]], [[3, 3]])
    assert transactional["transaction"] == {"id": "billing", "producer_id": 7, "epoch": 3}
    session.received(1, frame("settled", number=transactional["number"]), 1.1)
    step(session, 1.1)
    assert (promise.is_done, promise.error) == (True, None)


def test_a_broker_that_does_not_know_transactions_is_not_sent_one(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, jobs(1), 1.0)
    [item] = take_all(session)
    promise = Promise()
    billing = TransactionIdentity("billing", 7, 3)
    session.settle(item, "accept", None, promise, 1.0, transaction=billing)
    assert said(step(session, 1.0), "settle") == []
    assert "older version" in str(promise.error)
    assert session.holds(item)


def test_simultaneous_settlements_are_sent_in_one_frame(session: "QueueSession[ReceivedRecord]") -> None:
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


def test_leases_are_renewed_until_jobs_are_settled(
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


def test_jobs_that_the_broker_revoked_are_not_handed_out(session: "QueueSession[ReceivedRecord]") -> None:
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


def test_a_settled_job_is_not_renewed_at_the_same_time(
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


def test_one_late_ack_does_not_fail_the_acks_next_to_it(
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
    assert session.take_lost_acks()
    assert not session.take_lost_acks()


def test_ranges_that_were_not_refused_are_durable(session: "QueueSession[ReceivedRecord]") -> None:
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


def test_settling_an_earlier_delivery_does_not_settle_the_next_one(
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


def test_a_late_answer_does_not_remove_the_next_delivery(
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


def test_jobs_of_a_lost_connection_are_dropped_at_once(session: "QueueSession[ReceivedRecord]") -> None:
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
    assert session.take_lost_acks()


def test_it_reconnects_with_growing_delays() -> None:
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


def test_an_unreachable_node_is_not_retried_once_no_node_names_it(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, working("ws://b:8080/v1/work"), 1.0)
    step(session, 1.0)
    session.disconnected(2, GONE, 1.0)
    session.received(1, working(), 1.5)
    assert dialled(step(session, 60.0)) == []
    session.received(1, working("ws://b:8080/v1/work"), 61.0)
    assert dialled(step(session, 61.0)) == [(3, "ws://b:8080/v1/work")]


def test_the_reconnect_timeout_ends_it_with_the_cause() -> None:
    session = new_session(reconnect_timeout_s=30.0)
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.disconnected(1, GONE, 1.0)
    step(session, 30.0)
    assert isinstance(session.ended, Unreachable)
    assert "the network is down" in str(session.ended)
    assert session.wake_at() is None


def test_a_permanent_refusal_ends_it(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, frame("error", code="unknown_topic", message="there is no topic 'orders'"), 1.0)
    session.disconnected(1, ConnectionLoss("closed", 4404), 1.0)
    assert isinstance(session.ended, Denied)
    assert session.ended.code == "unknown_topic"
    assert step(session, 100.0) == []


@pytest.mark.parametrize("close_code", [1006, 1012, 1013, 4408])
def test_a_transient_close_code_does_not_end_it(
    session: "QueueSession[ReceivedRecord]", close_code: int
) -> None:
    session.disconnected(1, ConnectionLoss("closed", close_code), 1.0)
    assert session.ended is None
    assert step(session, 100.0) == [FindNodes()]


def test_a_node_that_is_starting_is_asked_again(session: "QueueSession[ReceivedRecord]") -> None:
    session.disconnected(
        1, ConnectionLoss("not ready", denied=Denied("not_ready", "starting", retriable=True)), 1.0
    )
    assert session.ended is None


def test_draining_returns_prefetched_jobs_and_keeps_jobs_that_were_handed_out(
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
    session.received(1, jobs(4), 2.5)  # it was in flight
    [late] = said(step(session, 2.5))
    assert late["return"] == [[4, 4]]
    session.settle(in_hand, "accept", None, None, 3.0)
    assert [one["accept"] for one in said(step(session, 3.0))] == [[[1, 1]]]


def test_a_drained_session_is_settled_when_nothing_can_be_in_flight_any_more(
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


def test_draining_does_not_wait_for_a_lost_node(session: "QueueSession[ReceivedRecord]") -> None:
    session.drain()
    step(session, 1.0)
    session.disconnected(1, GONE, 1.1)
    assert session.is_settled


def test_deleted_records_are_accepted(session: "QueueSession[ReceivedRecord]") -> None:
    session.received(1, jobs(1, 2, 3, held=[1, 3]), 1.0)
    assert offsets(take_all(session)) == [1, 3]
    [settle] = said(step(session, 1.0))
    assert settle["accept"] == [[2, 2]]


def test_unreadable_records_are_rejected(session: "QueueSession[ReceivedRecord]") -> None:
    rotten = bytearray(jobs(1, 2))
    rotten[-1] ^= 0xFF
    session.received(1, bytes(rotten), 1.0)
    assert session.take() is None
    [settle] = said(step(session, 1.0))
    assert settle["reject"] == [[1, 2]]


def test_closing_resolves_all_settlements_and_closes_connections(
    session: "QueueSession[ReceivedRecord]",
) -> None:
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


def test_a_connection_that_opens_after_the_end_is_closed() -> None:
    session = new_session()
    step(session, 0.0)
    session.found([A], 0.0)
    step(session, 0.0)
    session.end()
    step(session, 1.0)
    session.connected(1, 2.0)
    assert step(session, 2.0) == [Disconnect(1)]


def test_unknown_frames_are_ignored_and_malformed_ones_are_not(
    session: "QueueSession[ReceivedRecord]",
) -> None:
    session.received(1, frame("weather", sun=True), 1.0)
    assert session.ended is None
    session.received(1, "<html>", 1.0)
    assert isinstance(session.ended, Garbled)
