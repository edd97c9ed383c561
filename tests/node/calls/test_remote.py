"""Requests between nodes as bytes: callers and messages arrive unchanged, and limits hold."""

import asyncio
from collections.abc import Iterable, Mapping
from uuid import uuid4

import pytest

from penstock.config import Address, Limits
from penstock.errors import CorruptLog, DiskFull, ErrorCode, KafkaError, NotExecuted, Unanswered
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.node.calls import BROKER, AtNode, Calls, ClusterChanges, Directory, methods
from penstock.node.calls.messages.controller import CreateTopic, ReportVoters
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.calls.messages.records import AppendBatch
from penstock.node.calls.remote import FRAME_OVERHEAD, RemoteCalls, decode, encode
from penstock.node.peers import Body, FrameDispatcher, PeerHello, Rpc
from penstock.node.peers.handshake import NEWEST_VERSION
from penstock.types import ANONYMOUS, Caller, GroupId, NodeId, Replica

HERE, THERE = NodeId(1), NodeId(2)
GROUP = GroupId(uuid4(), 3)
LIMITS = Limits(max_peer_calls=4)


class Line:
    """A transport to one other node, in the same event loop."""

    def __init__(self, me: NodeId, events: FrameDispatcher) -> None:
        self.me = me
        self.events = events
        self.other: Line | None = None
        self.bodies: list[bytes] = []
        self.version = NEWEST_VERSION

    def send(self, to: NodeId, kind: int, body: Body) -> bool:
        if self.other is None or self.other.me != to:
            return False
        data = b"".join(body) if isinstance(body, list) else bytes(body)
        self.bodies.append(data)
        asyncio.get_running_loop().call_soon(self.other.events.on_frame, self.me, kind, memoryview(data))
        return True

    def connected(self) -> Mapping[NodeId, PeerHello]:
        return {}

    def version_of(self, node: NodeId) -> int:
        return self.version

    def introduce(self, me: PeerHello) -> None: ...

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None: ...

    def dial_seeds(self, addresses: Iterable[Address]) -> None: ...


class Given(Directory):
    """Finds given nodes only."""

    def __init__(self) -> None: ...


def node(me: NodeId, limits: Limits) -> tuple[Line, Calls]:
    events = FrameDispatcher()
    line = Line(me, events)
    calls = Calls(me, Given(), ClusterChanges())
    rpc = Rpc(line, events, max_calls_per_peer=limits.max_peer_calls)
    calls.connect(RemoteCalls(rpc, limits))
    return line, calls


def two_nodes(limits: Limits = LIMITS) -> tuple[Calls, Calls, Line]:
    (line, here), (other, there) = node(HERE, limits), node(THERE, limits)
    line.other, other.other = other, line
    return here, there, line


@pytest.mark.parametrize("caller", [ANONYMOUS, BROKER, Caller("User:Ann Ö", "2001:db8::1", "x" * 255)])
async def test_the_caller_arrives_with_the_request(caller: Caller) -> None:
    here, there, _line = two_nodes()
    seen: list[tuple[Caller, CreateTopic]] = []
    there.serve(methods.CREATE_TOPIC, lambda caller, request: seen.append((caller, request)))
    request = CreateTopic("orders", 3, {"retention.ms": "5"})
    await here.ask(AtNode(THERE), methods.CREATE_TOPIC, request, caller=caller)
    assert seen == [(caller, request)]


async def test_an_anonymous_caller_costs_two_bytes() -> None:
    here, there, line = two_nodes()
    there.serve(methods.FORWARD, lambda caller, request: request)
    await here.ask(AtNode(THERE), methods.FORWARD, memoryview(b"frame"), caller=ANONYMOUS)
    assert line.bodies[0].endswith(b"\x00\x00frame")
    assert len(line.bodies[0]) == 6 + 2 + 5


async def test_values_arrive_as_their_types() -> None:
    report = ReportVoters(GROUP, [Replica(NodeId(1), 2**62)], 7)
    batch = AppendBatch(GROUP, b"records")
    for message in (report, batch):
        assert decode(type(message), memoryview(encode(message))) == message


async def test_kafka_messages_travel_as_kafkas_own_frames() -> None:
    here, there, _ = two_nodes()

    def answer(caller: Caller, request: KafkaRequest) -> KafkaResponse:
        assert isinstance(request.body, MetadataRequest)
        return KafkaResponse(request.api_key, request.version, MetadataResponse(controller_id=9))

    there.serve(methods.KAFKA_QUERY, answer)
    request = KafkaRequest(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    response = await here.ask(AtNode(THERE), methods.KAFKA_QUERY, request, caller=BROKER)
    assert isinstance(response.body, MetadataResponse)
    assert response.body.controller_id == 9


@pytest.mark.parametrize("kind", [KafkaError, NotExecuted])
async def test_a_refusal_is_raised_where_the_request_was_made(kind: type[KafkaError]) -> None:
    here, there, _ = two_nodes()

    def refuse(caller: Caller, request: CreateTopic) -> None:
        raise kind(ErrorCode.NOT_CONTROLLER, "ask node 3")

    there.serve(methods.CREATE_TOPIC, refuse)
    with pytest.raises(KafkaError, match="ask node 3") as caught:
        await here.ask(AtNode(THERE), methods.CREATE_TOPIC, CreateTopic("t"), caller=BROKER)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (DiskFull("no space"), ErrorCode.KAFKA_STORAGE_ERROR),
        (CorruptLog("t-0", 5, "no batch"), ErrorCode.KAFKA_STORAGE_ERROR),
        (ZeroDivisionError("bug"), -1),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_error_of_the_other_node_is_raised_with_its_reason(
    problem: Exception, code: int, at_once: bool
) -> None:
    here, there, _ = two_nodes()

    def fail(caller: Caller, request: CreateTopic) -> None:
        raise problem

    async def fail_later(caller: Caller, request: CreateTopic) -> None:
        raise problem

    there.serve(methods.CREATE_TOPIC, fail if at_once else fail_later)
    with pytest.raises(KafkaError, match=str(problem)) as caught:
        await here.ask(AtNode(THERE), methods.CREATE_TOPIC, CreateTopic("t"), caller=BROKER)
    assert caught.value.code == code


async def test_a_request_to_a_disconnected_node_was_not_executed() -> None:
    here, _, line = two_nodes()
    line.other = None
    with pytest.raises(Unanswered, match="cannot be reached") as caught:
        await here.ask(AtNode(THERE), methods.CREATE_TOPIC, CreateTopic("t"), caller=BROKER)
    assert not caught.value.may_be_done


async def test_an_older_node_is_not_asked_for_a_method_that_it_does_not_have() -> None:
    here, there, line = two_nodes()
    newer = methods.FORWARD._replace(since=NEWEST_VERSION + 1)
    there.serve(methods.FORWARD, lambda caller, request: request)
    with pytest.raises(
        Unanswered, match=r"node 2 speaks version 2 .* forward came with version 3: update"
    ) as caught:
        await here.ask(AtNode(THERE), newer, memoryview(b"frame"), caller=BROKER)
    assert (caught.value.code, caught.value.may_be_done) == (ErrorCode.UNSUPPORTED_VERSION, False)
    assert line.bodies == []
    line.version += 1
    assert await here.ask(AtNode(THERE), newer, memoryview(b"frame"), caller=BROKER) == b"frame"


def test_a_row_says_with_which_version_its_method_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "METHODS", {})
    needs, since = methods.NODES_ONLY, NEWEST_VERSION + 1
    newer = methods._row(1, "newer", CreateTopic, CreateTopic, needs, repeatable=True, since=since)
    older = methods._row(2, "older", CreateTopic, CreateTopic, needs, repeatable=True)
    assert newer.since == since
    assert older.since <= NEWEST_VERSION


async def test_a_request_that_cannot_be_read_is_refused_and_not_executed() -> None:
    here, there, _ = two_nodes()
    executed: list[object] = []
    there.serve(methods.CREATE_TOPIC, lambda caller, request: executed.append(request))
    wrong = methods.CREATE_TOPIC._replace(request=memoryview)  # as a node with a bug would send
    with pytest.raises(NotExecuted, match="create_topic from node 1") as caught:
        await here.ask(AtNode(THERE), wrong, memoryview(b"\xff"), caller=BROKER)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert not executed


async def test_a_message_must_fit_a_frame_both_ways() -> None:
    limits = Limits(max_peer_frame_bytes=1024 * 1024)
    here, there, _ = two_nodes(limits)
    there.serve(methods.FORWARD, lambda caller, request: memoryview(bytes(2 * len(request))))
    fits = limits.max_peer_frame_bytes - FRAME_OVERHEAD

    async def ask(size: int) -> int:
        frame = memoryview(bytes(size))
        return len(await here.ask(AtNode(THERE), methods.FORWARD, frame, caller=ANONYMOUS))

    assert await ask(fits // 2) == fits // 2 * 2
    for size, what in ((fits - 1, "a request"), (fits // 2 + 1, "a response")):
        with pytest.raises(KafkaError, match=f"{what} of .*max_peer_frame_bytes") as caught:
            await ask(size)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_requests_of_clients_leave_half_of_the_calls_to_the_cluster() -> None:
    here, there, _ = two_nodes()
    release = asyncio.Event()

    async def wait(caller: Caller, request: KafkaRequest) -> KafkaResponse:
        await release.wait()
        return KafkaResponse(request.api_key, request.version, MetadataResponse())

    there.serve(methods.KAFKA_REQUEST, wait)
    there.serve(methods.METADATA_END, lambda caller, request: 7)
    request = KafkaRequest(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    waiting = [
        asyncio.ensure_future(here.ask(AtNode(THERE), methods.KAFKA_REQUEST, request, caller=BROKER))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Unanswered, match="2 requests of clients already wait for node 2") as caught:
        await here.ask(AtNode(THERE), methods.KAFKA_REQUEST, request, caller=BROKER)
    assert not caught.value.may_be_done
    assert await here.ask(AtNode(THERE), methods.METADATA_END, None, caller=BROKER) == 7
    release.set()
    await asyncio.gather(*waiting)


async def test_forwarded_requests_leave_half_of_the_calls_to_the_cluster() -> None:
    here, there, _ = two_nodes()
    release = asyncio.Event()

    async def wait(caller: Caller, frame: memoryview) -> memoryview:
        await release.wait()
        return frame

    there.serve(methods.FORWARD, wait)
    there.serve(methods.METADATA_END, lambda caller, request: 7)
    frame = memoryview(b"CreateTopics")
    asked = [
        asyncio.ensure_future(here.ask(AtNode(THERE), methods.FORWARD, frame, caller=ANONYMOUS))
        for _ in range(LIMITS.max_peer_calls)
    ]
    await asyncio.sleep(0)
    assert await here.ask(AtNode(THERE), methods.METADATA_END, None, caller=BROKER) == 7
    release.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(one, Unanswered) for one in answers] == [False, False, True, True]
