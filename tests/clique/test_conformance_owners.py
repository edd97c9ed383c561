"""On every carrier: one owner at a time, in order per key, while workers come and go."""

import asyncio
import time

from penstock.clique import Clique, Message, Slot, Slots
from penstock.clique.clocks import lease_clock_ms
from penstock.ring import SLOTS
from tests.clique.world import (
    LEASE_MS,
    LONG_LEASE_MS,
    WAIT_S,
    CutOff,
    World,
    asynchronous,
    check_all,
    check_fencing_tokens,
    check_one_at_a_time,
    check_order,
    crash,
    until,
)

NEEDED = "one-owner"


async def short(message: Message, slot: Slot) -> None:
    await asyncio.sleep(0.002)


@asynchronous
async def test_messages_of_a_key_run_one_at_a_time_in_order_while_workers_join_and_leave(
    world: World,
) -> None:
    async with world:
        first = world.recorder("w1", short)
        await world.started(first)
        publisher = world.clique()
        await publisher.start()
        async with world.publishing(publisher, keys=20) as numbers:
            for worker in ("w1", "w2", "w3"):
                if worker != "w1":
                    await world.started(world.recorder(worker, short))
                await world.log.wait_for(
                    lambda runs, name=worker: [run.worker for run in runs].count(name) > 20
                )
            await first.close()
        runs = await world.log.wait_for_numbers(numbers())
    check_all(runs)
    assert {run.worker for run in runs} == {"w1", "w2", "w3"}


@asynchronous
async def test_a_key_goes_to_the_same_worker_while_nobody_comes_or_goes(world: World) -> None:
    async with world:
        workers = [world.recorder(name) for name in ("w1", "w2", "w3")]
        await world.started(*workers)
        await world.publish(workers[0], range(90), keys=30)
        runs = await world.log.wait_for_numbers(range(90))
    owners = {(run.key, run.worker, run.epoch) for run in runs}
    assert len(owners) == 30
    assert len({worker for _, worker, _ in owners}) == 3


@asynchronous
async def test_shares_are_even_and_little_moves(world: World) -> None:
    async with world:
        first = world.recorder("w1")
        await world.started(first)
        for number in range(2, 5):
            newcomer = world.recorder(f"w{number}")
            before = first.status().shares
            await world.started(newcomer)
            await first.wait_for_slots(WAIT_S)
            shares = newcomer.status().shares
            assert max(shares.values()) <= 1.25 * SLOTS / number
            assert sum(shares.values()) == SLOTS
            moved = sum(max(0, before[worker] - shares[worker]) for worker in before)
            assert moved <= 1.2 * SLOTS / number


@asynchronous
async def test_the_same_worker_name_gets_its_slots_back(world: World) -> None:
    got: list[set[int]] = []

    def listening(worker: str) -> Clique:
        made = world.recorder(worker)

        @made.on_acquire
        async def note(slots: Slots) -> None:
            got.append(set(slots))

        return made

    async with world:
        await world.started(world.recorder("w1"), world.recorder("w2"))
        third = listening("w3")
        await world.started(third)
        before = set().union(*got)
        await third.close()
        got.clear()
        await world.started(listening("w3"))
        assert set().union(*got) == before


@asynchronous
async def test_a_leave_waits_for_the_handler_that_runs_and_the_next_owner_begins_then(world: World) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait(message: Message, slot: Slot) -> None:
        begun.set()
        await may_end.wait()

    async with world:
        first = world.recorder("w1", wait)
        await world.started(first)
        await world.publish(first, range(2), keys=1)
        await begun.wait()
        second = world.recorder("w2")
        await second.start()
        leaving = asyncio.create_task(first.close())
        while first.status().shares.get("w2", 0) < SLOTS - 1:
            await asyncio.sleep(0.01)
        assert not world.log.runs
        ended_at = time.monotonic()
        may_end.set()
        await leaving
        runs = await world.log.wait_for_numbers(range(2))
    check_all(runs)
    assert [run.worker for run in runs] == ["w1", "w2"]
    assert runs[1].began - ended_at < LONG_LEASE_MS / 1000 / 3, "a planned leave costs no lease"


@asynchronous
async def test_the_keys_of_a_worker_that_crashed_are_served_after_its_lease(world: World) -> None:
    world.lease_ms = LEASE_MS
    async with world:
        first, second = world.recorder("w1"), world.recorder("w2")
        await world.started(first, second)
        crashed_at = time.monotonic()
        await crash(first)
        if not second._transport.capabilities.acks:
            # The carrier gives messages to a connection, and loses them, until it has noticed that it ended.
            await until(lambda: second.status().shares == {"w2": SLOTS})
        await world.publish(second, range(100), keys=100)
        runs = await world.log.wait_for_numbers(range(100))
        assert {run.worker for run in runs} == {"w2"}
        assert second.status().shares == {"w2": SLOTS}
    late = [run for run in runs if run.began - crashed_at > 0.5 * LEASE_MS / 1000]
    assert late, "half of the keys had to wait for the end of the lease"
    check_all(runs)


@asynchronous
async def test_no_handler_starts_after_the_lease_has_ended_and_the_worker_joins_again(world: World) -> None:
    """The worker is alive, but none of its heartbeats is answered for a while."""
    world.lease_ms = LEASE_MS
    released: list[bool] = []
    async with world:
        first, second = world.recorder("w1", short), world.recorder("w2", short)
        first.on_release(lambda slots: released.append(slots.lost))
        await world.started(first)
        await world.publish(first, range(10), keys=10)
        await world.log.wait_for_numbers(range(10))
        number = 10
        with CutOff(first):
            assert first._membership is not None
            lease_ends_ms = first._membership.lease_ends_ms
            starting = asyncio.create_task(world.started(second))
            while not starting.done():
                await world.publish(first, range(number, number + 10), keys=10)
                number += 10
                await asyncio.sleep(0.05)
            await starting
        await first.wait_for_slots(WAIT_S)
        runs = await world.log.wait_for_numbers(range(number))
        assert sorted(second.status().shares) == ["w1", "w2"]
        is_exclusive = first._transport.capabilities.exclusive
    check_one_at_a_time(runs)
    check_fencing_tokens(runs)
    if is_exclusive:  # otherwise the worker that is cut off still holds messages when later ones run
        check_order(runs)
    ends = time.monotonic() + (lease_ends_ms - lease_clock_ms()) / 1000
    of_first = [run.began <= ends for run in runs if run.worker == "w1"]
    assert of_first[0]
    assert any(run.began > ends for run in runs if run.worker == "w2")
    assert True in released, "it is told that others may have its slots"


@asynchronous
async def test_a_handler_that_runs_when_the_lease_ends_is_cancelled(world: World) -> None:
    world.lease_ms = LEASE_MS
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(message: Message, slot: Slot) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with world:
        first = world.recorder("w1", hang)
        await world.started(first)
        await world.publish(first, range(1))
        await begun.wait()
        with CutOff(first):
            second = world.recorder("w2")
            await world.started(second)
            await until(cancelled.is_set)
        runs = await world.log.wait_for_numbers(range(1))
    assert [run.worker for run in runs] == ["w2"]


@asynchronous
async def test_a_slow_handler_is_not_a_dead_worker(world: World) -> None:
    """It blocks the event loop for more than a lease: no other message of the clique waits for it."""
    world.lease_ms = LEASE_MS

    async def block(message: Message, slot: Slot) -> None:
        time.sleep(1.5 * LEASE_MS / 1000)  # noqa: ASYNC251 - that is the point

    async with world:
        first = world.recorder("w1", block)
        await world.started(first)
        member_id = first.status().member_id
        await world.publish(first, range(1))
        await world.log.wait_for_numbers(range(1))
        assert first.status().member_id == member_id, "it was never expelled"
        assert first.status().is_member


@asynchronous
async def test_callbacks_surround_the_handlers_of_a_slot(world: World) -> None:
    events: list[tuple[str, str]] = []

    def worker(name: str) -> Clique:
        async def note(message: Message, slot: Slot) -> None:
            events.append((name, "handler"))

        made = world.recorder(name, note)

        @made.on_acquire
        async def load(slots: Slots) -> None:
            await asyncio.sleep(0.05)
            if slots.has_key(b"key-0"):
                events.append((name, "acquired"))

        @made.on_release
        def save(slots: Slots) -> None:
            assert not slots.lost
            if slots.has_key(b"key-0"):
                events.append((name, "released"))

        return made

    async with world:
        first = worker("w1")
        await world.started(first)
        await world.publish(first, range(1))
        await world.log.wait_for_numbers(range(1))
        second = worker("w2")
        await second.start()
        await first.close()
        await second.wait_for_slots(WAIT_S)
        await world.publish(second, range(10, 11))
        await world.log.wait_for_numbers(range(10, 11))
    assert events[:5] == [
        ("w1", "acquired"),
        ("w1", "handler"),
        ("w1", "released"),
        ("w2", "acquired"),
        ("w2", "handler"),
    ]
