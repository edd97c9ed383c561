"""Messages between workers are lost, doubled and reordered: nothing is lost, and nothing runs at the same time."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from penstock.clique import Clique, Message, Slot, forwarding, inbox, intake
from penstock.clique.forwarding_transport import ForwardingTransport
from penstock.clique.memory import MemoryPubSub
from penstock.clique.pubsub import PubSub
from tests.clique.world import World, asynchronous, check_fencing_tokens, check_one_at_a_time


class LossyPubSub(MemoryPubSub):
    """Of the messages between workers it loses, doubles and delays some."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(name)
        self._hub_name = name
        self._random = random

    def another(self) -> PubSub:
        return MemoryPubSub(self._hub_name)

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str | None = None
    ) -> None:
        if ".to." not in subject:
            await super().publish(subject, data, headers, reply)
            return
        chance = self._random.random()
        for _ in range(0 if chance < 0.2 else 2 if chance < 0.4 else 1):
            if self._random.random() < 0.2:
                asyncio.get_running_loop().call_later(
                    self._random.random() / 5, self._hub.publish, subject, data, headers or {}, reply
                )
            else:
                await super().publish(subject, data, headers, reply)


class LossyWorld(World):
    def __init__(self, unique: Callable[[str], str], seed: int) -> None:
        super().__init__("", unique("pricing"), unique("orders"))
        self._hub_name = unique("hub")
        self._random = Random(seed)

    def clique(self, worker: str | None = None, **options: Any) -> Clique:
        self.carrier = LossyPubSub(self._hub_name, self._random)
        return super().clique(worker, **options)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_although_messages_between_workers_are(unique, seed: int, monkeypatch) -> None:
    monkeypatch.setattr(forwarding, "RESEND_MS", 100.0)

    async def short(message: Message, slot: Slot) -> None:
        await asyncio.sleep(0.001)

    @asynchronous
    async def run() -> None:
        async with LossyWorld(unique, seed) as world:
            workers = [world.recorder(f"w{number}", short) for number in range(3)]
            await world.started(*workers[:2])
            publishing = asyncio.create_task(world.publish(workers[0], range(300), keys=30))
            await world.started(workers[2])
            await publishing
            await workers[1].close(grace=5)
            runs = await world.log.wait_for_numbers(range(300))
        check_one_at_a_time(runs)
        check_fencing_tokens(runs)

    run()


@asynchronous
async def test_a_worker_that_has_no_room_is_asked_again(unique, monkeypatch) -> None:
    """The owner takes five at a time, and fifty come at once."""
    monkeypatch.setattr(inbox, "IN_FLIGHT_MAX", 5)
    async with World(f"memory://{unique('hub')}", unique("pricing"), unique("orders")) as world:

        async def slow(message: Message, slot: Slot) -> None:
            await asyncio.sleep(0.01)

        workers = [world.recorder(f"w{number}", slow) for number in range(2)]
        await world.started(*workers)
        await world.publish(workers[0], range(50), keys=50)
        runs = await world.log.wait_for_numbers(range(50))
    assert len(runs) == 50
    check_one_at_a_time(runs)


@asynchronous
async def test_bytes_that_are_no_frames_are_ignored(unique) -> None:
    hub = unique("hub")
    async with World(f"memory://{hub}", unique("pricing"), unique("orders")) as world:
        worker = world.recorder("w1")
        await world.started(worker)
        stranger = MemoryPubSub(hub)
        assert isinstance(worker._transport, ForwardingTransport)
        address = worker._transport.address
        for data in (b"", b"\xc1", b"\x91\x91\xa1?", b"\x80"):
            await stranger.publish(f"_clique.{world.name}.to.{address}", data)
        await stranger.publish(f"_clique.replies.{address}", b"whatever")
        await world.publish(worker, range(3))
        await world.log.wait_for_numbers(range(3))
        await stranger.close()


@pytest.mark.parametrize("limit", ["IN_FLIGHT_MAX", "BUFFERED_BYTES_MAX"])
@asynchronous
async def test_a_worker_takes_a_bounded_number_of_messages_from_the_carrier(
    unique, monkeypatch, limit: str
) -> None:
    monkeypatch.setattr(intake, limit, 5)
    may_end = asyncio.Event()

    async def wait(message: Message, slot: Slot) -> None:
        await may_end.wait()

    async with World(f"memory://{unique('hub')}", unique("pricing"), unique("orders")) as world:
        worker = world.recorder("w1", wait, concurrency=100)
        await world.started(worker)
        await world.publish(worker, range(30), keys=30)
        await asyncio.sleep(0.1)
        assert worker.status().in_flight <= 10, "each counts as taken and as running"
        may_end.set()
        await world.log.wait_for_numbers(range(30))
