"""Cliques on a carrier without compare-and-set: affinity as a best effort, on a NATS server without JetStream."""

import asyncio
import time

import pytest

from penstock.clique import CliqueError, Message, Slot, TooWeak
from penstock.clique.forwarding_transport import ForwardingTransport
from penstock.ring import SLOTS
from tests.clique.nats_server import NatsServer
from tests.clique.world import WAIT_S, World, asynchronous, check_one_at_a_time, crash

LEASE_MS = 8_000
"""A newcomer waits for most of it before it takes a share. With a shorter one, workers on a busy machine suspect each
other."""


@pytest.fixture
def world(core_nats_server: NatsServer, unique) -> World:
    return World(core_nats_server.address, unique("pricing"), unique("orders"), lease_ms=LEASE_MS)


async def shares_become(world: World, clique, workers: set[str]) -> None:
    async with asyncio.timeout(WAIT_S):
        while {name for name, share in clique.status().shares.items() if share} != workers:
            await asyncio.sleep(0.02)


@asynchronous
async def test_a_key_has_the_same_owner_for_all_while_nobody_comes_or_goes(world: World) -> None:
    async with world:
        workers = [world.recorder(f"w{number}") for number in range(3)]
        await world.started(*workers)
        for worker in workers:
            await shares_become(world, worker, {"w0", "w1", "w2"})
        shares = [worker.status().shares for worker in workers]
        assert shares[0] == shares[1] == shares[2]
        assert max(shares[0].values()) <= 1.25 * SLOTS / 3
        await world.publish(workers[0], range(60), keys=20)
        runs = await world.log.wait_for_numbers(range(60))
    check_one_at_a_time(runs)
    assert len({(run.key, run.worker) for run in runs}) == 20


@asynchronous
async def test_the_keys_of_a_worker_that_crashed_go_to_others(world: World) -> None:
    async with world:
        first, second = world.recorder("w1"), world.recorder("w2")
        await world.started(first, second)
        await shares_become(world, second, {"w1", "w2"})
        await crash(first)
        await shares_become(world, second, {"w2"})
        await world.publish(second, range(20), keys=20)
        runs = await world.log.wait_for_numbers(range(20))
    assert {run.worker for run in runs} == {"w2"}


@asynchronous
async def test_a_leave_waits_for_handlers_and_loses_nothing(world: World) -> None:
    async def short(message: Message, slot: Slot) -> None:
        await asyncio.sleep(0.01)

    async with world:
        first, second = world.recorder("w1", short), world.recorder("w2", short)
        await world.started(first, second)
        await shares_become(world, first, {"w1", "w2"})
        await shares_become(world, second, {"w1", "w2"})
        await world.publish(second, range(200), keys=20)
        began = time.monotonic()
        await first.close()
        assert time.monotonic() - began < WAIT_S / 2
        await world.log.wait_for_numbers(range(200))
        await shares_become(world, second, {"w2"})


@asynchronous
async def test_the_process_that_was_started_later_keeps_a_name(world: World) -> None:
    async with world:
        first = world.recorder("w1")
        running = asyncio.create_task(first.run())
        while not first.status().is_member:
            await asyncio.sleep(0.01)
        second = world.recorder("w1")
        await world.started(second)
        with pytest.raises(CliqueError, match="another process has the name of worker w1"):
            await running


@asynchronous
async def test_a_stronger_guarantee_is_refused(world: World) -> None:
    clique = world.recorder("w1", guarantee="one-owner")
    with pytest.raises(TooWeak, match=r"lacks compare-and-set .* best effort"):
        await clique.start()


@asynchronous
async def test_gossip_that_makes_no_sense_is_ignored(world: World) -> None:
    async with world:
        worker = world.recorder("w1")
        await world.started(worker)
        transport = worker._transport
        assert isinstance(transport, ForwardingTransport)
        for data in (b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03"):
            await transport._pubsub.publish(f"_clique.{world.name}.gossip", data)
        await world.publish(worker, range(3))
        await world.log.wait_for_numbers(range(3))
