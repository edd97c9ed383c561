"""`ask` finds the node that has a role, also after it moves, and never executes a request twice that must not be."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DiskFull, ErrorCode, KafkaError, NotExecuted, Unanswered
from penstock.node.calls import (
    BROKER,
    CONTROLLER,
    AtNode,
    Calls,
    ClusterChanges,
    CoordinatorOf,
    Directory,
    Target,
    methods,
    retry,
)
from penstock.node.calls.messages.controller import CreateTopic
from penstock.node.calls.remote import RemoteCalls
from penstock.types import Caller, NodeId

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
REQUEST = CreateTopic("orders")
CALLER = Caller("User:ann", "10.0.0.1", "shop")
MOVED = KafkaError(ErrorCode.NOT_CONTROLLER, "the controller is 3")


class FakeDirectory(Directory):
    """One role, which a test moves."""

    def __init__(self) -> None:
        self.at = OTHER
        self.is_known = True

    def find(self, target: Target) -> NodeId:
        if isinstance(target, AtNode):
            return target.node
        if not self.is_known:
            raise NotExecuted(ErrorCode.NOT_CONTROLLER, "no node is known to be the controller")
        return self.at

    def describe(self, target: Target) -> str:
        return "the controller"


Outcome = Exception | object


class FakeRemote:
    """Other nodes. They answer with these outcomes, one after the other, and repeat the last one."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[NodeId] = []
        self.before: Callable[[NodeId], None] = lambda node: None

    def answer_with(self, answer: object) -> None: ...

    async def call(self, node: NodeId, *rest: object) -> Any:
        self.asked.append(node)
        self.before(node)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Bench:
    def __init__(self, *outcomes: Outcome) -> None:
        self.directory = FakeDirectory()
        self.changes = ClusterChanges()
        self.remote = FakeRemote(*outcomes)
        self.calls = Calls(ME, self.directory, self.changes)
        self.calls.connect(cast(RemoteCalls, self.remote))

    def ask(self, target: Target = CONTROLLER, **options: Any) -> Awaitable[Any]:
        return self.calls.ask(target, methods.CREATE_TOPIC, REQUEST, caller=CALLER, **options)

    def ask_once(self, target: Target = CONTROLLER) -> Awaitable[Any]:
        """Uses a method that must not be repeated."""
        return self.calls.ask(target, methods.FORWARD, memoryview(b""), caller=CALLER)


@pytest.fixture
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(retry, "LONGEST_DELAY_SECONDS", 0.0)


async def test_a_request_to_this_node_reaches_its_handler_as_the_same_object() -> None:
    bench = Bench()
    bench.directory.at = ME
    seen: list[tuple[Caller, CreateTopic]] = []
    bench.calls.serve(methods.CREATE_TOPIC, lambda caller, request: seen.append((caller, request)))
    await bench.ask()
    [(caller, request)] = seen
    assert request is REQUEST
    assert caller is CALLER
    assert bench.remote.asked == []


async def test_keys_are_grouped_by_the_node_that_has_their_role() -> None:
    bench = Bench()
    forbidden = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")

    def target_of(key: str) -> Target:
        if key == "secret":
            raise forbidden
        return CONTROLLER if key == "controller" else AtNode(NodeId(int(key)))

    nodes, unknown = bench.calls.by_node(["3", "controller", "secret", "2", "1"], target_of)
    assert nodes == {THIRD: ["3"], OTHER: ["controller", "2"], ME: ["1"]}
    assert unknown == {"secret": forbidden}
    bench.directory.is_known = False
    nodes, unknown = bench.calls.by_node(["3", "controller"], target_of)
    assert nodes == {THIRD: ["3"]}
    assert isinstance(unknown["controller"], NotExecuted)


async def test_a_handler_may_wait() -> None:
    bench = Bench()
    bench.directory.at = ME

    async def later(caller: Caller, request: CreateTopic) -> None:
        await asyncio.sleep(0)

    bench.calls.serve(methods.CREATE_TOPIC, later)
    assert await bench.ask() is None


async def test_a_full_disk_of_this_node_gives_the_same_error_as_one_elsewhere() -> None:
    bench = Bench()
    bench.directory.at = ME

    def full(caller: Caller, request: CreateTopic) -> None:
        raise DiskFull("no space")

    bench.calls.serve(methods.CREATE_TOPIC, full)
    with pytest.raises(KafkaError, match="no space") as caught:
        await bench.ask()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_request_follows_its_target_to_the_next_node() -> None:
    bench = Bench(MOVED, "done")
    bench.remote.before = lambda node: setattr(bench.directory, "at", THIRD)
    assert await bench.ask() == "done"
    assert bench.remote.asked == [OTHER, THIRD]


async def test_an_unknown_target_is_waited_for_until_it_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 1_000.0)
    bench = Bench("done")
    bench.directory.is_known = False
    asked = asyncio.ensure_future(bench.ask())
    await asyncio.sleep(0)
    assert bench.remote.asked == []
    bench.directory.is_known = True
    bench.changes.fire()
    assert await asked == "done"


async def test_a_given_node_is_asked_once() -> None:
    for problem in (MOVED, Unanswered(ErrorCode.BROKER_NOT_AVAILABLE, "gone", may_be_done=False)):
        bench = Bench(problem)
        with pytest.raises(KafkaError):
            await bench.ask(AtNode(OTHER))
        assert bench.remote.asked == [OTHER]


async def test_a_mistake_in_the_request_is_raised_at_once() -> None:
    bench = Bench(KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "a name"))
    with pytest.raises(KafkaError, match=r"^a name$"):
        await bench.ask()
    assert bench.remote.asked == [OTHER]


@pytest.mark.usefixtures("_no_delays")
async def test_an_error_code_inside_a_response_counts_like_one_that_is_raised() -> None:
    bench = Bench(ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
    assert await bench.ask(code_of=int) == ErrorCode.NONE
    assert len(bench.remote.asked) == 2


async def test_the_last_response_is_returned_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    bench = Bench(ErrorCode.NOT_COORDINATOR)
    assert await bench.ask(code_of=int) == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("node 3 does not lead", r"^node 3 does not lead \(waited 10 s for the controller\)$"),
        ("the controller is 3", r"^the controller is 3 \(waited 10 s\)$"),
    ],
)
async def test_the_final_error_names_the_target_once(
    message: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    bench = Bench(KafkaError(ErrorCode.NOT_CONTROLLER, message))
    with pytest.raises(KafkaError, match=told) as caught:
        await bench.ask()
    assert caught.value.code is ErrorCode.NOT_CONTROLLER


@pytest.mark.usefixtures("_no_delays")
async def test_an_unknown_topic_is_final_only_if_the_controller_says_so() -> None:
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic")
    controller = Bench(unknown, "done")
    with pytest.raises(KafkaError, match=r"^there is no topic$"):
        await controller.ask()
    assert controller.remote.asked == [OTHER]
    coordinator = Bench(unknown, "done")
    assert await coordinator.ask(CoordinatorOf("shop")) == "done"
    assert coordinator.remote.asked == [OTHER, OTHER]


async def test_the_final_error_says_whether_the_request_may_have_been_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    for may_be_done in (True, False):
        bench = Bench(Unanswered(ErrorCode.NOT_CONTROLLER, "gone", may_be_done=may_be_done))
        with pytest.raises(Unanswered, match="waited 10 s") as caught:
            await bench.ask()
        assert caught.value.may_be_done is may_be_done


async def test_nodes_are_asked_concurrently_and_a_failure_of_one_affects_no_other() -> None:
    bench = Bench(MOVED, "done")
    found = await bench.calls.ask_nodes([OTHER, THIRD], methods.CREATE_TOPIC, REQUEST, caller=BROKER)
    assert found == {OTHER: MOVED, THIRD: "done"}


async def test_a_method_that_no_part_of_the_node_serves_yet_was_not_executed() -> None:
    with pytest.raises(NotExecuted, match="does not serve create_topic"):
        Bench().calls.handle(methods.CREATE_TOPIC, BROKER, REQUEST)


UNDONE = (
    NotExecuted(ErrorCode.NOT_CONTROLLER),
    Unanswered(ErrorCode.NOT_CONTROLLER, "not connected", may_be_done=False),
)
DOUBTFUL = (
    KafkaError(ErrorCode.NOT_CONTROLLER, "lost the lead while waiting"),
    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    Unanswered(ErrorCode.NOT_CONTROLLER, "timed out", may_be_done=True),
    Unanswered(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug", may_be_done=True),
    KafkaError(ErrorCode.INVALID_REQUEST),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*UNDONE, *DOUBTFUL, "done"]), max_size=8))
def test_a_request_that_may_not_be_repeated_is_never_sent_after_it_may_have_been_executed(
    outcomes: list[Outcome],
) -> None:
    sent = asyncio.run(_sent(outcomes))
    doubtful = next((at for at, outcome in enumerate(outcomes) if outcome not in UNDONE), len(outcomes))
    assert sent == doubtful + 1


async def _sent(outcomes: list[Outcome]) -> int:
    """How often a request was sent until a response."""
    bench = Bench(*outcomes, "done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "FIRST_DELAY_SECONDS", 0.0)
        patch.setattr(retry, "LONGEST_DELAY_SECONDS", 0.0)
        with contextlib.suppress(KafkaError):
            await bench.ask_once()
    return len(bench.remote.asked)


class TestAskingForADisplay:
    """`ask_known` shows what is known now: it waits for no election, and not twice for a silent node."""

    @staticmethod
    def ask(bench: Bench, silent: set[NodeId]) -> Awaitable[Any]:
        return bench.calls.ask_known(
            CONTROLLER,
            methods.CREATE_TOPIC,
            REQUEST,
            caller=CALLER,
            silent=silent,
            is_refusal=lambda response: response is None,
        )

    @pytest.mark.usefixtures("_no_delays")
    @pytest.mark.parametrize("outcome", [None, MOVED])
    async def test_a_node_that_refuses_is_not_asked_again(self, outcome: Outcome) -> None:
        bench = Bench(outcome)
        silent: set[NodeId] = set()
        assert await self.ask(bench, silent) is None
        assert (bench.remote.asked, silent) == ([OTHER], set())

    @pytest.mark.parametrize("outcome", [None, MOVED])
    async def test_the_node_to_which_the_role_has_moved_is_asked(self, outcome: Outcome) -> None:
        bench = Bench(outcome, "shown")
        bench.remote.before = lambda node: setattr(bench.directory, "at", THIRD)
        assert await self.ask(bench, set()) == "shown"
        assert bench.remote.asked == [OTHER, THIRD]

    @pytest.mark.usefixtures("_no_delays")
    async def test_a_node_that_does_not_answer_is_asked_once(self) -> None:
        bench = Bench(Unanswered(ErrorCode.BROKER_NOT_AVAILABLE, "silence", may_be_done=True))
        silent: set[NodeId] = set()
        for _ in range(2):
            assert await self.ask(bench, silent) is None
        assert (bench.remote.asked, silent) == ([OTHER], {OTHER})

    async def test_a_role_that_no_node_is_known_to_have_is_not_waited_for(self) -> None:
        bench = Bench("shown")
        bench.directory.is_known = False
        assert await self.ask(bench, set()) is None
        assert bench.remote.asked == []
