"""Cliques on Penstock: records of any Kafka client, other keys, dead letters, lost acknowledgements, a broker that
dies."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from penstock import Broker
from penstock.batch import Record
from penstock.client import Client
from penstock.client.errors import Denied, LeaseLost
from penstock.client.retry_policy import WorkerPolicy
from penstock.clique import Clique, JsonCodec, Message, PenstockCarrier, Slot
from penstock.clique.clique_queue import CREDIT_MAX, Acknowledgement, CliqueJob
from penstock.clique.codecs import RecordCodec
from penstock.clique.handlers import HandlerTable, new_handler
from penstock.clique.penstock_intake import JobIntake
from penstock.clique.penstock_transport import PenstockTransport
from penstock.clique.runner import HandlerRunner
from penstock.clique.transport import Codecs
from penstock.ring import SLOTS
from penstock.types import TopicPartition
from tests.clique.test_conformance_messages import Mailbox
from tests.clique.world import WAIT_S, World, asynchronous, check_all, turns
from tests.web.test_push_crash import Served


@pytest.fixture
def world(broker: Broker, unique: Callable[[str], str]) -> World:
    return World(f"penstock://{broker.bootstrap_servers}", unique("pricing"), unique("orders"))


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as made:
        yield made


@asynchronous
async def test_records_of_any_kafka_client_are_messages_from_the_beginning_of_the_topic(
    world: World, broker: Broker, client: Client
) -> None:
    client.admin.create_topic(world.stream, partitions=3)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(30):
        producer.produce(world.stream, b"%d" % number, b"key-%d" % (number % 10), headers=[("trace", b"7")])
    producer.produce(world.stream, None, b"gone")
    producer.flush()
    async with world:
        clique = world.clique("w1")
        mailbox = Mailbox(clique, world.stream)
        await world.started(clique)
        got = [await mailbox.get() for _ in range(31)]
    values = [message for message in got if message.value is not None]
    assert sorted(int(message.value or b"") for message in values) == list(range(30))
    assert {message.header("trace") for message in values} == {b"7"}
    assert [message.key for message in got if message.value is None] == [b"gone"]


@asynchronous
async def test_what_a_clique_publishes_is_a_record_with_its_key_and_headers(
    world: World, client: Client
) -> None:
    async with world, world.clique() as publisher:
        await publisher.publish(world.stream, b"...", key=b"alice", headers={"trace": b"7"})
        await publisher.publish(world.stream, None, key=b"gone")
    with client.subscribe(world.stream, name=f"{world.name}-reader", read_old=True) as subscription:
        first, second = subscription.receive(WAIT_S), subscription.receive(WAIT_S)
    assert first is not None
    assert second is not None
    assert (first.key, first.value, first.header("trace")) == (b"alice", b"...", b"7")
    assert (second.key, second.value) == (b"gone", None)
    assert client.admin.topic_configs(world.stream)["penstock.retention.keep.undone"] == "true"


@asynchronous
async def test_a_record_with_another_codec_still_has_its_key(world: World, client: Client) -> None:
    async with world:
        clique = world.clique("w1")
        mailbox = Mailbox(clique, world.stream, codec=JsonCodec())
        await world.started(clique)
        await clique.publish(world.stream, b'{"item":7}', key=b"alice")
        message = await mailbox.get()
    assert (message.key, message.json()) == (b"alice", {"item": 7})
    with client.subscribe(world.stream, name=f"{world.name}-reader", read_old=True) as subscription:
        record = subscription.receive(WAIT_S)
    assert record is not None
    assert record.key == b"alice"
    assert record.json() == {"value": {"item": 7}, "key": "alice"}


@asynchronous
async def test_a_message_whose_key_function_gives_another_key_is_handled_as_it_was(world: World) -> None:
    """In the order of its own key, by the owner of the other one, with its own key and headers."""
    got: list[Message] = []
    async with world:
        for worker in ("w1", "w2"):
            clique = world.clique(worker)

            @clique.handler(world.stream, key=lambda message: message.json()["customer"])
            async def note(message: Message, slot: Slot) -> None:
                got.append(message)

        await world.started(*world._cliques)
        for number in range(50):
            body = {"customer": f"customer-{number % 5}", "number": number}
            await world._cliques[0].publish(world.stream, json=body, key=b"all", headers={"trace": b"7"})
        async with asyncio.timeout(WAIT_S):
            while len(got) < 50:
                await asyncio.sleep(0.01)
    assert {message.key for message in got} == {b"all"}
    assert {message.stream for message in got} == {world.stream}
    assert {message.header("trace") for message in got} == {b"7"}
    for customer in range(5):
        numbers = [one.json()["number"] for one in got if one.json()["customer"] == f"customer-{customer}"]
        assert numbers == list(range(customer, 50, 5))


@asynchronous
async def test_a_request_whose_key_function_gives_another_key_is_answered(world: World) -> None:
    async with world:
        for worker in ("w1", "w2"):
            clique = world.clique(worker)

            @clique.responder(world.stream, key=lambda message: message.value)
            async def answer(message: Message, slot: Slot, worker: str = worker) -> str:
                return f"{worker} {message.text()}"

        await world.started(*world._cliques)
        async with world.clique() as asking:
            answers = [
                (
                    await asking.request(world.stream, f"customer-{number}", key=b"all", timeout=WAIT_S)
                ).decode()
                for number in range(8)
            ]
    assert [answer.split()[1] for answer in answers] == [f"customer-{number}" for number in range(8)]
    assert {answer.split()[0] for answer in answers} == {"w1", "w2"}


@asynchronous
async def test_dead_letters_are_those_of_the_queue_and_can_be_sent_back(world: World, client: Client) -> None:
    is_fixed = False
    done = asyncio.Event()
    async with world:
        clique = world.clique("w1", max_attempts=2, backoff=0.01)

        @clique.handler(world.stream)
        async def fail(message: Message, slot: Slot) -> None:
            if not is_fixed:
                raise ValueError("not yet")
            done.set()

        await world.started(clique)
        await clique.publish(world.stream, b"...", key=b"alice")
        async with asyncio.timeout(WAIT_S):
            while not (letters := await asyncio.to_thread(_letters, client, world.name)):
                await asyncio.sleep(0.05)
        is_fixed = True
        await asyncio.to_thread(client.admin.send_back, world.name)
        async with asyncio.timeout(WAIT_S):
            await done.wait()
    assert (letters[0].key, letters[0].error_text, letters[0].worker) == (b"alice", "not yet", "w1")


def _letters(client: Client, queue: str) -> list[Any]:
    return list(client.admin.dead_letters(queue))


@asynchronous
async def test_without_dead_letters_a_message_that_is_given_up_is_done(
    world: World, client: Client, caplog
) -> None:
    async with world:
        clique = world.clique("w1", max_attempts=1, dead_letters=False)

        @clique.handler(world.stream)
        async def fail(message: Message, slot: Slot) -> None:
            raise ValueError("never")

        await world.started(clique)
        await clique.publish(world.stream, b"...", key=b"alice")
        async with asyncio.timeout(WAIT_S):
            while not clique.status().failed:
                await asyncio.sleep(0.01)
    assert client.admin.queue(world.name).undone == 0
    assert _letters(client, world.name) == []
    assert "is given up: ValueError: never" in caplog.text


@asynchronous
async def test_a_queue_of_the_same_name_is_in_the_way(world: World, client: Client) -> None:
    client.admin.create_queue(world.name, topic=world.stream)
    clique = world.recorder("w1")
    with pytest.raises(Denied, match="a clique needs a queue of its name with order=owner"):
        await clique.start()


@asynchronous
async def test_a_topic_that_is_deleted_ends_the_worker(world: World, client: Client) -> None:
    async with world:
        clique = world.recorder("w1")
        running = asyncio.create_task(clique.run(grace=1))
        while not clique.status().is_member:
            await asyncio.sleep(0.01)
        await world.publish(clique, range(1))
        await world.log.wait_for_numbers(range(1))
        client.admin.delete_topic(world.stream)
        with pytest.raises(Denied, match="unknown_topic"):
            await running


@asynchronous
async def test_settings_that_an_address_cannot_hold_go_into_a_carrier(world: World, broker: Broker) -> None:
    carrier = PenstockCarrier(broker.bootstrap_servers, http=broker.http_url, kafka={"client.id": "pricing"})
    async with Clique(world.name, carrier) as clique:
        await clique.publish(world.stream, b"...")
        assert clique.status().carrier == f"penstock://{broker.bootstrap_servers}"
        assert clique.guarantee.level == "durable"


@asynchronous
async def test_the_broker_lists_its_worker_with_its_slots_and_messages(world: World, broker: Broker) -> None:
    may_end = asyncio.Event()

    async def wait(message: Message, slot: Slot) -> None:
        await may_end.wait()

    async with world:
        clique = world.recorder("w1", wait)
        await world.started(clique)
        await world.publish(clique, range(3), keys=3)
        async with asyncio.timeout(WAIT_S):
            while clique.status().in_flight < 3:
                await asyncio.sleep(0.01)
        facts = await asyncio.to_thread(_described, broker, world.name)
        may_end.set()
        await world.log.wait_for_numbers(range(3))
    [member] = facts["members"]
    assert (member["worker"], member["slots"], member["in_flight"]) == ("w1", SLOTS, {world.stream: 3})


def _described(broker: Broker, clique: str) -> dict[str, Any]:
    response = httpx.get(f"{broker.http_url}/v1/cliques/{clique}")
    response.raise_for_status()
    facts: dict[str, Any] = response.json()
    return facts


@asynchronous
async def test_a_plain_on_release_keeps_its_slots_until_it_returns_and_the_broker_shows_that(
    world: World, broker: Broker
) -> None:
    """Its thread may still write what the next owner would read."""
    may_return = threading.Event()
    async with world:
        first = world.recorder("w1", release_timeout=0.05)
        first.on_release(lambda slots: may_return.wait(WAIT_S))
        await world.started(first)
        second = world.recorder("w2")
        await second.start()
        async with asyncio.timeout(WAIT_S):
            while not (members := await asyncio.to_thread(_members, broker, world.name))["w1"]["overdue"]:
                await asyncio.sleep(0.01)
        assert (members["w1"]["overdue"], members["w2"]["slots"]) == (SLOTS // 2, 0)
        may_return.set()
        await second.wait_for_slots(WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while (members := await asyncio.to_thread(_members, broker, world.name))["w1"]["overdue"]:
                await asyncio.sleep(0.01)
        assert (members["w1"]["slots"], members["w2"]["slots"]) == (SLOTS // 2, SLOTS // 2)


def _members(broker: Broker, clique: str) -> dict[str, dict[str, Any]]:
    return {member["worker"]: member for member in _described(broker, clique)["members"]}


@asynchronous
async def test_large_messages_lower_the_number_that_a_worker_holds(world: World) -> None:
    async with world:
        clique = world.clique("w1")
        mailbox = Mailbox(clique, world.stream)
        await world.started(clique)
        assert isinstance(clique._transport, PenstockTransport)
        queue = clique._transport._queue
        assert queue is not None
        for number in range(200):
            await clique.publish(world.stream, b"small", key=b"key-%d" % number)
        for _ in range(200):
            await mailbox.get()
        before = queue._credit
        for number in range(60):
            await clique.publish(world.stream, bytes(900_000), key=b"key-%d" % number)
        for _ in range(60):
            await mailbox.get()
        assert queue._credit < before == CREDIT_MAX
        assert queue._credit * 900_000 < 2 * 64 * 1024 * 1024


# --- a broker that dies, and acknowledgements that are lost


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "data")
    one.start()
    yield one
    one.end(signal.SIGTERM)


@asynchronous
async def test_a_worker_survives_a_broker_that_is_killed_and_started_again(served: Served, unique) -> None:
    """Messages that were in hand when the connection broke do not run twice at the same time, nor out of order."""

    async def short(message: Message, slot: Slot) -> None:
        await asyncio.sleep(0.01)

    address = f"penstock://{served.bootstrap_servers}"
    async with World(address, unique("pricing"), unique("orders"), lease_ms=60_000) as world:
        workers = [world.recorder(f"w{number}", short, concurrency=4) for number in range(2)]
        await world.started(*workers)
        await world.publish(workers[0], range(300), keys=20)
        await world.log.wait_for(lambda runs: len(runs) > 30)
        await asyncio.to_thread(served.end, signal.SIGKILL)
        await asyncio.to_thread(served.start)
        runs = await world.log.wait_for_numbers(range(300), timeout_s=60)
        check_all(runs)
        assert {run.worker for run in runs} == {"w0", "w1"}


class FakeQueue:
    """Notes what is settled; `fails` makes acknowledgements fail, as when the connection breaks."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, str, int | None]] = []
        self.fails = False

    def settle(self, job: CliqueJob, action: str, *, epoch: int | None = None, error: object = None) -> Any:
        self.settled.append((job.offset, action, epoch))
        made = Acknowledgement()
        made.resolve(LeaseLost("the connection broke") if self.fails else None)
        return made


class FakeOwnership:
    def begin(self, slot: int) -> int:
        return 7

    begin_nested = begin

    def end(self, slot: int) -> None:
        pass

    def is_granted(self, slot: int) -> bool:
        return True


@asynchronous
async def test_a_lost_acknowledgement_is_repeated_without_running_the_handler_again() -> None:

    calls: list[int] = []
    may_end = asyncio.Event()

    async def handle(message: Message, slot: Slot) -> None:
        calls.append(int(message.value or b""))
        await may_end.wait()

    handlers = HandlerTable()
    handlers.add(
        new_handler(
            "orders", handle, is_responder=False, key=None, codec=None, policy=WorkerPolicy(), timeout=None
        )
    )
    runner = HandlerRunner(FakeOwnership(), 10, lambda problem: None)
    tasks: list[Any] = []
    intake = JobIntake(
        "pricing",
        None,
        runner,
        handlers,
        Codecs(RecordCodec(), handlers),
        {"orders": "orders"},
        lambda work: tasks.append(asyncio.ensure_future(work)),
        keeps_dead_letters=True,
    )
    queue, other = FakeQueue(), FakeQueue()

    def job(offset: int, timestamp: int = 5) -> CliqueJob:
        record = Record(offset=offset, timestamp=timestamp, key=b"alice", value=b"%d" % offset, headers=[])
        return CliqueJob(TopicPartition("orders", 0), record, connection_id=1, order=offset)

    intake.take(queue, job(0))
    await turns()
    intake.take(other, job(0))  # its connection broke while its handler runs
    other.fails = True
    may_end.set()
    await turns()
    assert (calls, queue.settled, other.settled) == ([0], [], [(0, "accept", 7)])
    other.fails = False
    intake.take(other, job(0))
    await turns()
    assert calls == [0]
    assert other.settled[-1] == (0, "accept", None)
    intake.take(other, job(0, timestamp=6))  # another record at the same offset: the topic was created again
    await turns()
    assert calls == [0, 0]
    other.fails = True
    intake.take(other, job(1))
    await turns()
    intake.forget(range(SLOTS))
    intake.take(other, job(1))
    await turns()
    assert calls == [0, 0, 1, 1], "the slot was given up in between"
