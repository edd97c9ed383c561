"""On every carrier: anybody can ask the owner of a key."""

import asyncio
import threading

import pytest

from penstock.clique import CallFailed, Clique, Closed, Message, Slot
from penstock.clique.limits import CHAIN_DEPTH_MAX
from tests.clique.world import WAIT_S, World, asynchronous


def responding(world: World, worker: str, **options: object) -> Clique:
    """A worker that tells its name, and asks others for what it is told: "ask KEY KEY ..."."""
    made = world.clique(worker, **options)

    @made.responder(world.stream)
    async def respond(message: Message, slot: Slot) -> str:
        words = message.text().split()
        if words[:1] == ["ask"]:
            rest = "ask " + " ".join(words[2:]) if words[2:] else "name"
            answer = await made.request(world.stream, rest, key=words[1], timeout=WAIT_S)
            return f"{worker}<{answer.decode()}"
        return worker

    return made


async def ask(clique: Clique, world: World, text: str, key: str = "alice", timeout: float = WAIT_S) -> str:
    return (await clique.request(world.stream, text, key=key, timeout=timeout)).decode()


@asynchronous
async def test_the_owner_answers_whoever_asks(world: World) -> None:
    async with world:
        workers = [responding(world, name) for name in ("w1", "w2", "w3")]
        await world.started(*workers)
        keys = [f"key-{number}" for number in range(30)]
        answers = [[await ask(worker, world, "name", key) for key in keys] for worker in workers]
        async with world.clique() as client:
            answers.append([await ask(client, world, "name", key) for key in keys])
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert set(answers[0]) == {"w1", "w2", "w3"}


@asynchronous
async def test_a_responder_may_ask_its_own_key(world: World) -> None:
    async with world:
        worker = responding(world, "w1")
        await world.started(worker)
        assert await ask(worker, world, "ask alice alice", "alice") == "w1<w1<w1"


@asynchronous
async def test_a_circle_of_requests_over_several_workers_comes_back_to_the_key_that_waits(
    world: World,
) -> None:
    async with world:
        workers = [responding(world, name) for name in ("w1", "w2", "w3")]
        await world.started(*workers)
        keys = [f"key-{number}" for number in range(6)]
        owners = {key: await ask(workers[0], world, "name", key) for key in keys}
        assert len(set(owners.values())) > 1
        circle = [*keys[1:], keys[0], keys[0]]
        answer = await ask(workers[0], world, "ask " + " ".join(circle), keys[0])
    assert answer == "<".join(owners[key] for key in [keys[0], *circle])


@asynchronous
async def test_a_handler_may_ask_its_own_key_while_its_slot_is_being_handed_over(world: World) -> None:
    begun, may_ask = asyncio.Event(), asyncio.Event()
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    async with world:
        first = responding(world, "w1")

        @first.handler(f"{world.stream}.work")
        async def work(message: Message, slot: Slot) -> None:
            begun.set()
            await may_ask.wait()
            answers.put_nowait(await first.request(world.stream, b"name", key=message.key, timeout=WAIT_S))

        await world.started(first)
        await first.publish(f"{world.stream}.work", b"...", key=b"alice")
        await begun.wait()
        leaving = asyncio.create_task(first.close())
        while not first.status().handing_over:
            await asyncio.sleep(0.01)
        may_ask.set()
        async with asyncio.timeout(WAIT_S):
            assert await answers.get() == b"w1"
        await leaving


@asynchronous
async def test_endless_recursion_is_refused(world: World) -> None:
    async with world:
        worker = responding(world, "w1")
        await world.started(worker)
        deepest = ["alice"] * CHAIN_DEPTH_MAX
        assert (await ask(worker, world, "ask " + " ".join(deepest))).count("w1") == CHAIN_DEPTH_MAX + 1
        with pytest.raises(CallFailed, match="CHAIN_DEPTH_MAX"):
            await ask(worker, world, "ask " + " ".join([*deepest, "alice"]))


@asynchronous
async def test_requests_of_handlers_do_not_wait_for_a_free_handler(world: World) -> None:
    """Every handler that may run at once waits for a request to another key of the same worker."""
    async with world:
        worker = responding(world, "w1", concurrency=2)
        await world.started(worker)
        asked = [ask(worker, world, f"ask inner-{number}", f"outer-{number}") for number in range(6)]
        assert await asyncio.gather(*asked) == ["w1<w1"] * 6


@asynchronous
async def test_responders_and_handlers_of_a_key_take_turns(world: World) -> None:
    running = 0
    async with world:
        worker = world.clique("w1")

        async def alone(message: Message, slot: Slot) -> bytes:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0.01)
            running -= 1
            return b"done"

        worker.handler(f"{world.stream}.work")(alone)
        worker.responder(world.stream)(alone)
        await world.started(worker)
        for number in range(5):
            await worker.publish(f"{world.stream}.work", b"%d" % number, key=b"alice")
        answers = [worker.request(world.stream, b"?", key=b"alice", timeout=WAIT_S) for _ in range(5)]
        assert await asyncio.gather(*answers) == [b"done"] * 5
        assert worker.status().failed == 0


@asynchronous
async def test_the_sender_is_told_why_a_responder_failed_and_it_is_not_called_again(world: World) -> None:
    calls = 0
    async with world:
        worker = world.clique("w1", backoff=0)

        @worker.responder(world.stream)
        async def fail(message: Message, slot: Slot) -> object:
            nonlocal calls
            calls += 1
            if message.value == b"object":
                return object()
            raise ValueError("no such custömer")

        await world.started(worker)
        async with world.clique() as client:
            for one in (worker, client):
                with pytest.raises(CallFailed, match="ValueError: no such cust"):
                    await ask(one, world, "?")
                with pytest.raises(CallFailed, match="object: expected bytes, text or None"):
                    await ask(one, world, "object")
    assert calls == 4


@asynchronous
async def test_a_request_that_nobody_answers_times_out(world: World) -> None:
    async with world, world.clique() as client:
        with pytest.raises(TimeoutError, match="no response"):
            await ask(client, world, "?", timeout=0.3)


@asynchronous
async def test_a_request_that_has_not_begun_in_time_never_begins(world: World) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()
    async with world:
        worker = world.clique("w1")

        @worker.responder(world.stream)
        async def respond(message: Message, slot: Slot) -> bytes:
            begun.append(message.text())
            await may_end.wait()
            return b"done"

        await world.started(worker)
        first = asyncio.create_task(ask(worker, world, "first"))
        while not begun:
            await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await ask(worker, world, "late", timeout=0.2)
        may_end.set()
        assert await first == "done"
        assert await ask(worker, world, "third") == "done"
    assert begun == ["first", "third"]


@asynchronous
async def test_a_stream_without_a_responder_says_so(world: World) -> None:
    async with world:
        worker = world.recorder("w1")
        await world.started(worker)
        async with world.clique() as client:
            with pytest.raises(CallFailed, match="no responder"):
                await ask(client, world, "?")


@asynchronous
async def test_a_message_that_is_no_request_runs_the_responder_as_well(world: World) -> None:
    got: asyncio.Queue[str] = asyncio.Queue()
    async with world:
        worker = world.clique("w1")

        @worker.responder(world.stream)
        async def note(message: Message, slot: Slot) -> str:
            got.put_nowait(message.text())
            return "dropped"

        await world.started(worker)
        await worker.publish(world.stream, "told", key="alice")
        async with asyncio.timeout(WAIT_S):
            assert await got.get() == "told"


@asynchronous
async def test_plain_functions_run_in_threads_and_do_not_hold_up_others(world: World) -> None:
    together = threading.Barrier(10)
    async with world:
        worker = world.clique("w1")

        @worker.responder(world.stream)
        def meet(message: Message, slot: Slot) -> str:
            together.wait(WAIT_S)
            return "done"

        await world.started(worker)
        answers = await asyncio.gather(*(ask(worker, world, "?", f"key-{number}") for number in range(10)))
        assert answers == ["done"] * 10


@asynchronous
async def test_requests_fail_when_the_clique_is_closed(world: World) -> None:
    async with world:
        client = world.clique()
        await client.start()
        asking = asyncio.create_task(ask(client, world, "?"))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(Closed):
            await asking
        with pytest.raises(Closed):
            await ask(client, world, "?")
