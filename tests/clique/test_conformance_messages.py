"""On every carrier: messages are acknowledged after their handlers, tried again, and finally dead letters."""

import asyncio
from typing import Any

import pytest

from penstock.clique import (
    Clique,
    CliqueError,
    Codec,
    FlowCodec,
    JsonCodec,
    Message,
    MsgpackCodec,
    OverLimit,
    Reject,
    Retry,
    Slot,
    Undecodable,
)
from penstock.clique.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from tests.clique.world import LEASE_MS, WAIT_S, World, asynchronous, check_all, crash, turns, until


class Mailbox:
    """What a handler has got."""

    def __init__(self, clique: Clique, stream: str, **options: Any) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

        @clique.handler(stream, **options)
        async def put(message: Message, slot: Slot) -> None:
            self.messages.put_nowait(message)

    async def get(self) -> Message:
        async with asyncio.timeout(WAIT_S):
            return await self.messages.get()


@asynchronous
async def test_a_message_arrives_as_it_was_published(world: World) -> None:
    async with world:
        clique = world.clique("w1")
        mailbox = Mailbox(clique, world.stream)
        await world.started(clique)
        await clique.publish(world.stream, b"\x00\xff", key=b"alice", headers={"trace": b"7", "none": None})
        await clique.publish(world.stream, json={"item": 7}, key="bob")
        first, second = await mailbox.get(), await mailbox.get()
    assert first.stream == world.stream
    assert (first.key, first.value, first.attempt) == (b"alice", b"\x00\xff", 1)
    assert first.header("trace") == b"7"
    assert ("none", None) in first.headers
    assert (second.key, second.json()) == (b"bob", {"item": 7})


@asynchronous
async def test_a_message_without_a_key_is_handled_by_any_worker(world: World) -> None:
    async with world:
        workers = [world.recorder(f"w{number}") for number in range(3)]
        await world.started(*workers)
        for number in range(60):
            await workers[0].publish(world.stream, b"%d" % number)
        runs = await world.log.wait_for_numbers(range(60))
    assert len({run.worker for run in runs}) == 3


@asynchronous
async def test_messages_of_different_keys_run_at_the_same_time(world: World) -> None:
    together = asyncio.Barrier(5)

    async def meet(message: Message, slot: Slot) -> None:
        await together.wait()

    async with world:
        clique = world.recorder("w1", meet)
        await world.started(clique)
        await world.publish(clique, range(5), keys=5)
        await world.log.wait_for_numbers(range(5))


@asynchronous
async def test_no_more_handlers_run_at_once_than_allowed(world: World) -> None:
    running, most = 0, 0
    may_end = asyncio.Event()

    async def count(message: Message, slot: Slot) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await may_end.wait()
        await asyncio.sleep(0)
        running -= 1

    async with world:
        clique = world.recorder("w1", count, concurrency=3)
        await world.started(clique)
        await world.publish(clique, range(30), keys=30)
        await until(lambda: running == 3)
        await turns()
        may_end.set()
        await world.log.wait_for_numbers(range(30))
    assert most == 3


@asynchronous
async def test_a_message_that_fails_is_tried_again_before_later_ones_of_its_key(world: World) -> None:
    failures = 3

    async def fail(message: Message, slot: Slot) -> None:
        nonlocal failures
        if message.value == b"1" and failures:
            failures -= 1
            assert message.attempt == 3 - failures
            raise ConnectionError("the database is away")

    async with world:
        clique = world.recorder("w1", fail, backoff=0.05, jitter=0)
        await world.started(clique)
        await world.publish(clique, range(4), keys=1)
        runs = await world.log.wait_for_numbers(range(4))
    assert failures == 0
    check_all(runs)


@asynchronous
async def test_a_message_that_fails_too_often_is_a_dead_letter_and_later_ones_go_on(world: World) -> None:
    async with world:
        clique = world.clique("w1", max_attempts=2, backoff=0.01)
        letters = Mailbox(clique, f"{world.stream}.dlq")
        done: asyncio.Queue[bytes] = asyncio.Queue()

        @clique.handler(world.stream)
        async def fail(message: Message, slot: Slot) -> None:
            if message.value == b"bad":
                raise ValueError("not a number")
            done.put_nowait(message.value or b"")

        await world.started(clique)
        await clique.publish(world.stream, b"bad", key=b"alice")
        await clique.publish(world.stream, b"good", key=b"alice")
        letter = await letters.get()
        async with asyncio.timeout(WAIT_S):
            assert await done.get() == b"good"
        assert clique.status().failed == 1
    assert letter.header("penstock-dead-reason") == b"rejected"
    assert letter.header("penstock-dead-topic") == world.stream.encode()
    assert letter.header("penstock-dead-error-type") == b"ValueError"
    assert letter.header("penstock-dead-error-text") == b"not a number"
    assert b"bad" in (letter.value or b"")


@asynchronous
async def test_a_handler_may_reject_and_retry(world: World) -> None:
    calls: list[tuple[bytes | None, int]] = []
    async with world:
        clique = world.clique("w1", backoff=100)
        letters = Mailbox(clique, f"{world.stream}.dlq")

        @clique.handler(world.stream)
        async def choose(message: Message, slot: Slot) -> None:
            calls.append((message.value, message.attempt))
            if message.value == b"reject":
                raise Reject("never")
            if message.attempt == 1:
                raise Retry(delay=0.01)

        await world.started(clique)
        await clique.publish(world.stream, b"retry", key=b"alice")
        await clique.publish(world.stream, b"reject", key=b"alice")
        assert (await letters.get()).header("penstock-dead-error-text") == b"never"
    assert calls == [(b"retry", 1), (b"retry", 2), (b"reject", 1)]


@asynchronous
async def test_a_handler_that_takes_too_long_has_failed(world: World) -> None:
    async with world:
        clique = world.clique("w1", max_attempts=1)
        letters = Mailbox(clique, f"{world.stream}.dlq")

        @clique.handler(world.stream, timeout=0.05)
        async def hang(message: Message, slot: Slot) -> None:
            await asyncio.Event().wait()

        await world.started(clique)
        await clique.publish(world.stream, b"...", key=b"alice")
        assert (await letters.get()).header("penstock-dead-error-type") == b"TimeoutError"


@asynchronous
async def test_a_message_that_cannot_be_decoded_is_a_dead_letter_whole(world: World) -> None:
    class Picky:
        def encode(self, message: Message) -> bytes:
            return message.value or b""

        def decode(self, stream: str, data: bytes) -> Message:
            if data.startswith(b"bad"):
                raise Undecodable("it begins with bad")
            return Message(stream=stream, value=data)

    async with world:
        clique = world.clique("w1")
        letters = Mailbox(clique, f"{world.stream}.dlq")
        mailbox = Mailbox(clique, world.stream, codec=Picky())
        await world.started(clique)
        await clique.publish(world.stream, b"bad \x00 bytes")
        await clique.publish(world.stream, b"good")
        letter = await letters.get()
        assert (await mailbox.get()).value == b"good"
    assert letter.value == b"bad \x00 bytes"
    assert letter.header("penstock-dead-error-text") == b"it begins with bad"


@asynchronous
async def test_a_key_function_decides_on_the_owner(world: World) -> None:
    """Messages without a key of their own: the customer is in the value."""
    async with world:
        keys: list[tuple[str, str]] = []
        cliques = []
        for worker in ("w1", "w2"):
            clique = world.clique(worker)

            @clique.handler(world.stream, key=lambda message: message.json()["customer"])
            async def note(message: Message, slot: Slot, worker: str = worker) -> None:
                keys.append((message.json()["customer"], worker))

            cliques.append(clique)
        await world.started(*cliques)
        for number in range(60):
            await cliques[0].publish(world.stream, json={"customer": f"c{number % 15}"})
        async with asyncio.timeout(WAIT_S):
            while len(keys) < 60:
                await asyncio.sleep(0.01)
    assert len(set(keys)) == 15
    assert {worker for _, worker in keys} == {"w1", "w2"}


@asynchronous
async def test_a_key_function_may_give_another_key_than_the_message_has(world: World) -> None:
    async with world:
        runs: list[tuple[str, int, str]] = []
        cliques = []
        for worker in ("w1", "w2"):
            clique = world.clique(worker)

            @clique.handler(world.stream, key=lambda message: message.json()["customer"])
            async def note(message: Message, slot: Slot, worker: str = worker) -> None:
                runs.append((message.json()["customer"], message.json()["number"], worker))

            cliques.append(clique)
        await world.started(*cliques)
        for number in range(60):
            body = {"customer": f"c{number % 15}", "number": number}
            await cliques[0].publish(world.stream, json=body, key=f"c{number % 15}-order")
        async with asyncio.timeout(WAIT_S):
            while len(runs) < 60:
                await asyncio.sleep(0.01)
    assert len({(customer, worker) for customer, _, worker in runs}) == 15
    assert sorted(number for _, number, _ in runs) == list(range(60))


@asynchronous
async def test_a_key_function_that_fails_makes_a_dead_letter(world: World) -> None:
    async with world:
        clique = world.clique("w1")
        letters = Mailbox(clique, f"{world.stream}.dlq")
        Mailbox(clique, world.stream, key=lambda message: message.json()["customer"])
        await world.started(clique)
        await clique.publish(world.stream, b"not JSON")
        letter = await letters.get()
    assert letter.header("penstock-dead-error-type") == b"JSONDecodeError"


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec(), FlowCodec()])
@asynchronous
async def test_streams_may_have_codecs_of_their_own(world: World, codec: Codec) -> None:
    async with world:
        clique = world.clique("w1")
        mailbox = Mailbox(clique, world.stream, codec=codec)

        @clique.responder(f"{world.stream}.ask", codec=codec)
        async def answer(message: Message, slot: Slot) -> bytes:
            return message.value or b""

        await world.started(clique)
        await clique.publish(world.stream, b"7", key=b"alice")
        message = await mailbox.get()
        assert await clique.request(f"{world.stream}.ask", b"8", key=b"alice", timeout=WAIT_S) == b"8"
    assert (message.key, message.value) == (b"alice", b"7")


@asynchronous
async def test_a_stream_reaches_every_clique_that_handles_it_once(world: World, unique) -> None:
    async with world:
        others = [world.recorder(f"other-{number}", name=unique("audit")) for number in range(1)]
        workers = [world.recorder(f"w{number}") for number in range(2)]
        await world.started(*workers)
        await world.started(*others)
        await world.publish(workers[0], range(40))
        runs = await world.log.wait_for(lambda runs: len(runs) >= 80)
        await asyncio.sleep(0.1)
    numbers = sorted(run.number for run in runs)
    assert numbers == sorted([*range(40), *range(40)])
    assert [run.number for run in runs if run.worker == "other-0"].count(7) == 1


@asynchronous
async def test_a_clique_without_handlers_publishes_and_requests(world: World) -> None:
    async with world:
        worker = world.recorder("w1")

        @worker.responder(f"{world.stream}.ask")
        async def answer(message: Message, slot: Slot) -> bytes:
            return b"answer to " + (message.key or b"")

        await world.started(worker)
        async with world.clique() as client:
            await world.publish(client, range(5))
            await world.log.wait_for_numbers(range(5))
            asked = await client.request(f"{world.stream}.ask", b"?", key=b"alice", timeout=WAIT_S)
            assert asked == b"answer to alice"
            assert client.status().worker is None
            with pytest.raises(CliqueError, match="no handlers"):
                await client.wait_for_slots()


@asynchronous
async def test_keys_and_messages_that_are_too_large_are_refused(world: World) -> None:
    async with world, world.clique() as client:
        with pytest.raises(OverLimit, match="KEY_BYTES_MAX"):
            await client.publish(world.stream, b"...", key=bytes(KEY_BYTES_MAX + 1))
        with pytest.raises(OverLimit, match="MESSAGE_BYTES_MAX"):
            await client.publish(world.stream, bytes(MESSAGE_BYTES_MAX + 1))


@asynchronous
async def test_a_crashed_worker_loses_nothing_if_the_carrier_has_acks(world: World) -> None:
    world.lease_ms = LEASE_MS
    hung = asyncio.Event()

    async def hang(message: Message, slot: Slot) -> None:
        hung.set()
        await asyncio.Event().wait()

    async with world:
        first = world.recorder("w1", hang)
        await world.started(first)
        if not first._transport.capabilities.acks:
            pytest.skip(str(first.guarantee))
        await world.publish(first, range(50))
        await hung.wait()
        second = world.recorder("w2")
        await second.start()
        await crash(first)
        runs = await world.log.wait_for_numbers(range(50))
    check_all(runs)
    assert {run.worker for run in runs} == {"w2"}
