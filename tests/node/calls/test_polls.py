"""Long polls: a quarter of the calls to a node wait there, and the others are sent without a wait."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from penstock.config import Limits
from penstock.errors import Unanswered
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.kafka.wire.messages.metadata import MetadataRequest
from penstock.kafka.wire.messages.produce import ProduceRequest, ProduceResponse
from penstock.node.calls import BROKER, AtNode, methods
from penstock.node.calls import remote as remote_calls
from penstock.node.calls.messages.cliques import AskTable, CliqueHeartbeat, TableAnswer
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.calls.messages.queue_state import SettlementOutcomes, WatchSettlements
from penstock.node.calls.messages.queues import ReceivedBatch, ReceiveRequest
from penstock.node.calls.methods import Method
from penstock.queue import Fence, QueueKey
from penstock.ring import Heartbeat, HeartbeatReply, HeartbeatStatus
from penstock.ring.clique_state import CliqueState
from penstock.types import Caller, GroupId

from .test_remote import THERE, two_nodes

GROUP = GroupId(UUID(int=7), 0)
SOME = ReceivedBatch(GROUP, b"records", [(0, 0, 1)], 30_000)
WAIT_MS = 3_600_000
CALLS = 8
POLLS = CALLS // 4


class Leader:
    """Another node. It answers a receive that waits when the test says so, and others at once."""

    def __init__(self) -> None:
        self.here, self.there, _ = two_nodes(Limits(max_peer_calls=CALLS))
        self.waits_ms: list[int] = []
        """Of all receives that have come."""
        self.release = asyncio.Event()
        self.messages: list[ReceivedBatch] = []
        self.cancelled = 0
        self.after_substitute = lambda: None
        self.there.serve(methods.RECEIVE, self.receive)
        self.there.serve(methods.METADATA_END, lambda caller, request: len(self.waits_ms))

    async def receive(self, caller: Caller, request: ReceiveRequest) -> list[ReceivedBatch]:
        self.waits_ms.append(request.wait_ms)
        if not request.wait_ms:
            answer = list(self.messages)
            self.after_substitute()
            for _ in range(10):  # what this has ended is answered first
                await asyncio.sleep(0)
            return answer
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.messages

    def ask(self, wait_ms: int = WAIT_MS, **options: Any) -> "asyncio.Task[list[ReceivedBatch]]":
        request = ReceiveRequest("jobs", "c", "", [GROUP], 1, 1_000, wait_ms, False)
        target = AtNode(THERE)
        return asyncio.ensure_future(
            self.here.ask(target, methods.RECEIVE, request, caller=BROKER, **options)
        )

    async def asked(self, times: int) -> list[int]:
        """The waits of the first receives. All that was sent before has come: frames come in order."""
        while len(self.waits_ms) < times:
            await asyncio.sleep(0)
        for _ in range(20):  # more turns of the loop than a request that is repeated at once takes
            assert await self.here.ask(AtNode(THERE), methods.METADATA_END, None, caller=BROKER) >= times
        return self.waits_ms


def pause(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(remote_calls, "POLL_PAUSE_SECONDS", seconds)


async def test_a_quarter_of_the_calls_may_be_long_polls_and_the_others_ask_once_before_they_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause(monkeypatch, 3_600.0)
    leader = Leader()
    polls = [leader.ask() for _ in range(20)]  # in one turn of the loop
    waits_ms = await leader.asked(20)
    assert sorted(waits_ms) == [0] * (20 - POLLS) + [WAIT_MS] * POLLS
    assert not any(poll.done() for poll in polls)
    assert await leader.ask(0) == [], "short requests of clients find a call"
    for poll in polls:
        poll.cancel()


async def test_a_poll_above_the_share_finds_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, 0.0)
    leader = Leader()
    polls = [leader.ask() for _ in range(POLLS)]
    await leader.asked(POLLS)
    later = leader.ask()
    await leader.asked(POLLS + 3)
    assert not later.done()
    leader.messages.append(SOME)
    assert await later == [SOME]
    assert set(leader.waits_ms[POLLS:]) == {0}
    leader.release.set()
    await asyncio.gather(*polls)


async def test_a_watch_above_the_share_ends_after_its_pause_so_that_the_next_one_names_new_settlements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause(monkeypatch, 0.0)
    leader, watched = Leader(), list[int]()

    async def settlements(caller: Caller, request: WatchSettlements) -> SettlementOutcomes:
        watched.append(request.wait_ms)
        return SettlementOutcomes([])

    leader.there.serve(methods.WATCH_SETTLEMENTS, settlements)
    polls = [leader.ask() for _ in range(POLLS)]
    await leader.asked(POLLS)
    answer = await leader.here.ask(AtNode(THERE), methods.WATCH_SETTLEMENTS, watch(WAIT_MS), caller=BROKER)
    assert (answer.outcomes, watched) == ([], [0])
    leader.release.set()
    await asyncio.gather(*polls)


async def test_a_poll_above_the_share_waits_at_the_node_when_another_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause(monkeypatch, 0.0)
    leader = Leader()
    polls = [leader.ask() for _ in range(POLLS)]
    await leader.asked(POLLS)
    leader.after_substitute = leader.release.set
    assert await leader.ask() == []
    await asyncio.gather(*polls)
    assert set(leader.waits_ms[POLLS:-1]) == {0}
    assert 0 < leader.waits_ms[-1] <= WAIT_MS


async def test_a_poll_above_the_share_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, 3_600.0)
    leader = Leader()
    polls = [leader.ask() for _ in range(POLLS)]
    await leader.asked(POLLS)
    leader.after_substitute = lambda: leader.messages.append(SOME)
    assert await leader.ask(1_000) == [SOME], "it asks a last time"
    assert leader.waits_ms[POLLS:] == [0, 0]
    leader.release.set()
    await asyncio.gather(*polls)


async def test_a_poll_above_the_share_ends_when_it_is_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, 3_600.0)
    leader, unwanted = Leader(), asyncio.Event()
    polls = [leader.ask() for _ in range(POLLS)]
    later = leader.ask(unwanted=unwanted)
    await leader.asked(POLLS + 1)
    unwanted.set()
    assert await later == []
    with pytest.raises(Unanswered, match="no longer wanted"):
        await leader.ask(unwanted=unwanted)
    assert len(leader.waits_ms) == POLLS + 1
    leader.release.set()
    await asyncio.gather(*polls)


async def test_polls_above_the_share_leave_calls_to_others_while_the_node_does_not_answer() -> None:
    leader = Leader()

    async def hang(caller: Caller, request: ReceiveRequest) -> list[ReceivedBatch]:
        leader.waits_ms.append(request.wait_ms)
        await leader.release.wait()
        return []

    leader.there._handlers[methods.RECEIVE.number] = hang
    leader.there.serve(methods.FORWARD, lambda caller, frame: frame)
    polls = [leader.ask() for _ in range(20)]
    assert await leader.asked(POLLS + 1) == [WAIT_MS] * POLLS + [0]
    frame = memoryview(b"CreateTopics")
    assert await leader.here.ask(AtNode(THERE), methods.FORWARD, frame, caller=BROKER) == frame
    polls[POLLS].cancel()  # its call goes on there, so no other may take its place
    assert len(await leader.asked(POLLS + 1)) == POLLS + 1
    hurried = methods.RECEIVE._replace(answer_ms=1)
    with pytest.raises(Unanswered, match="node 2 does not answer") as caught:
        await leader.here.ask(AtNode(THERE), hurried, receive(WAIT_MS), caller=BROKER)
    assert not caught.value.may_be_done
    for poll in polls:
        poll.cancel()


async def test_a_poll_whose_reader_disconnects_ends_at_the_node_and_leaves_its_place_to_others() -> None:
    leader = Leader()
    for count in range(1, 3 * CALLS):
        reader = leader.ask()
        await leader.asked(count)
        reader.cancel()
        await leader.asked(count)
        assert leader.cancelled == count
    assert set(leader.waits_ms) == {WAIT_MS}


async def test_calls_for_clients_that_were_cancelled_count_until_they_are_answered() -> None:
    here, there, _ = two_nodes(Limits(max_peer_calls=CALLS))
    release, begun = asyncio.Event(), list[memoryview]()

    async def wait(caller: Caller, frame: memoryview) -> memoryview:
        begun.append(frame)
        await release.wait()
        return frame

    there.serve(methods.FORWARD, wait)
    for _ in range(2 * CALLS):
        request = here.ask(AtNode(THERE), methods.FORWARD, memoryview(b"frame"), caller=BROKER)
        asked = asyncio.ensure_future(request)
        for _ in range(4):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    assert len(begun) == CALLS // 2
    release.set()


async def test_time_that_is_allowed_is_no_long_poll() -> None:
    leader = Leader()
    slow = asyncio.Event()

    async def produce(caller: Caller, request: KafkaRequest) -> KafkaResponse:
        await slow.wait()
        return KafkaResponse(request.api_key, request.version, ProduceResponse())

    leader.there.serve(methods.KAFKA_REQUEST, produce)
    publish = KafkaRequest(ApiKey.PRODUCE, 12, ProduceRequest())
    publishing = [
        asyncio.ensure_future(
            leader.here.ask(AtNode(THERE), methods.KAFKA_REQUEST, publish, caller=BROKER, allowed_ms=WAIT_MS)
        )
        for _ in range(POLLS)
    ]
    poll = leader.ask()
    assert await leader.asked(1) == [WAIT_MS]
    slow.set()
    leader.release.set()
    await asyncio.gather(poll, *publishing)


# --- the table


def fetch(wait_ms: int) -> KafkaRequest:
    return KafkaRequest(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=wait_ms))


def fetched(error_code: int = 0, records: bytes = b"") -> KafkaResponse:
    row = PartitionData(error_code=error_code, records=records)
    body = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])
    return KafkaResponse(ApiKey.FETCH, 12, body)


def heartbeat(wait_ms: int) -> CliqueHeartbeat:
    return CliqueHeartbeat("c", Heartbeat(worker="w", member_id="m", sequence=1, lease_ms=8_000), wait_ms)


def replied(status: HeartbeatStatus, epoch: int | None = None) -> HeartbeatReply:
    table = None if epoch is None else CliqueState(epoch=epoch).table
    return HeartbeatReply(status=status, sequence=1, epoch=epoch or 1, lease_ms=8_000, table=table)


def watch(wait_ms: int) -> WatchSettlements:
    return WatchSettlements(QueueKey("jobs", UUID(int=7), 0), Fence(1, 1), [b"s"], wait_ms)


def receive(wait_ms: int) -> ReceiveRequest:
    return ReceiveRequest("jobs", "c", "", [GROUP], 1, 1_000, wait_ms, False)


def ask_table(wait_ms: int) -> AskTable:
    return AskTable("c", 3, wait_ms)


POLLED: list[tuple[Method[Any, Any], Callable[[int], Any], list[Any], list[Any]]] = [
    (methods.RECEIVE, receive, [[]], [[SOME]]),
    (methods.KAFKA_QUERY, fetch, [fetched()], [fetched(6), fetched(records=b"x")]),
    (methods.WATCH_SETTLEMENTS, watch, [SettlementOutcomes([])], [SettlementOutcomes([(b"s", True)])]),
    (
        methods.CLIQUE_HEARTBEAT,
        heartbeat,
        [replied(HeartbeatStatus.OK)],
        [replied(HeartbeatStatus.OK, 4), replied(HeartbeatStatus.FENCED)],
    ),
    (
        methods.CLIQUE_TABLE,
        ask_table,
        [TableAnswer(CliqueState(epoch=3).table)],
        [TableAnswer(CliqueState(epoch=4).table), TableAnswer(None)],
    ),
]


@pytest.mark.parametrize(
    ("method", "request_of", "empty", "told"), POLLED, ids=lambda one: getattr(one, "name", "")
)
def test_a_poll_says_how_long_it_waits_and_which_responses_say_nothing(
    method: Method[Any, Any], request_of: Callable[[int], Any], empty: list[Any], told: list[Any]
) -> None:
    poll = method.poll
    assert poll is not None
    assert [poll.wait_ms(request_of(wait_ms)) for wait_ms in (0, 1_000)] == [0, 1_000]
    assert poll.with_wait(request_of(1_000), 0) == request_of(0)
    assert [poll.is_empty(request_of(1_000), one) for one in (*empty, *told)] == [
        *[True] * len(empty),
        *[False] * len(told),
    ]


def test_a_heartbeat_is_not_repeated_for_longer_than_a_coordinator_holds_it_back() -> None:
    assert methods.CLIQUE_HEARTBEAT.poll is not None
    assert methods.CLIQUE_HEARTBEAT.poll.wait_ms(heartbeat(60_000)) == 2_000


def test_each_method_whose_requests_say_how_long_they_wait_is_a_poll() -> None:
    waiting = {
        method.name
        for method in methods.METHODS.values()
        if "wait_ms" in getattr(method.request, "__struct_fields__", ())
    }
    polled = {method.name for method in methods.METHODS.values() if method.poll is not None}
    assert polled == {*waiting, methods.KAFKA_QUERY.name} == {row[0].name for row in POLLED}


def test_other_kafka_requests_than_fetches_are_no_polls() -> None:
    assert methods.KAFKA_QUERY.poll is not None
    assert methods.KAFKA_QUERY.poll.wait_ms(KafkaRequest(ApiKey.METADATA, 12, MetadataRequest())) == 0


FOR_CLIENTS = """
    forward kafka_request kafka_query create_topic append_batch
    set_passwords create_token revoke_token
    receive settle peek accept list_scheduled describe_queue reload_queue
    delete_queue_state reset_queue_state list_start_offsets count_queue_state store_settlement watch_settlements
    begin_share_group list_subscriptions describe_subscription delete_subscription
    clique_heartbeat clique_table describe_clique list_cliques
    join_transaction abort_transaction lend_attempt commit_version rollback_version renew_attempts
"""
"""A client can cause as many of these as it sends requests."""
FOR_NODES = """
    cancel_receive return
    create_internal_topic reserve_producer_ids register_node report_voters report_damage metadata_end await_leaders
    claim_queue_state save_queue_state list_acked_offsets write_markers
    decommission_node rebalance transfer_leadership
    create_user delete_user put_role delete_role grant_role revoke_role
    list_led_partitions list_damaged_replicas list_samples
"""
"""The first ones end other requests, of which there are few; nodes decide about the next ones, and administrators after
them; the last ones are for status displays."""


def test_it_was_decided_for_each_method_whether_clients_decide_how_many_calls_there_are() -> None:
    """A new method belongs to one of the two lists. If clients can cause its calls and its row does not say so, they
    can take the calls that a node needs for the controller."""
    rows = methods.METHODS.values()
    assert sorted(row.name for row in rows if row.for_clients) == sorted(FOR_CLIENTS.split())
    assert sorted(row.name for row in rows if not row.for_clients) == sorted(FOR_NODES.split())
