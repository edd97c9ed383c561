"""Cliques on a real NATS server with JetStream: other programs of NATS, and a server that goes away."""

import asyncio
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from penstock.client.errors import Unreachable
from penstock.clique import Clique, CliqueError, Message, OverLimit, RecordCodec, Slot, nats_carrier
from penstock.clique.nats_carrier import BUCKET, NatsPubSub
from penstock.clique.pubsub import Delivery
from tests.clique.nats_server import NatsServer
from tests.clique.world import WAIT_S, World, asynchronous, check_all, until
from tests.ports import free_port


@asynchronous
async def test_programs_of_nats_publish_to_a_clique_and_ask_it(nats_server: NatsServer, unique) -> None:
    stream, got = unique("orders"), asyncio.Queue[Message]()
    clique = Clique(unique("pricing"), nats_server.address, worker="w1", codec=RecordCodec())

    @clique.handler(stream, key=lambda message: message.json()["customer"])
    async def note(message: Message, slot: Slot) -> None:
        got.put_nowait(message)

    @clique.responder(f"{stream}.ask")
    async def answer(message: Message, slot: Slot) -> bytes:
        return b"you said " + (message.value or b"")

    async with clique, await nats.connect(nats_server.address) as other:
        await clique.wait_for_slots(WAIT_S)
        await other.publish(stream, b'{"customer": "alice"}')
        async with asyncio.timeout(WAIT_S):
            assert (await got.get()).json() == {"customer": "alice"}
        reply = await other.request(f"{stream}.ask", b"hello", timeout=WAIT_S)
        assert reply.data == b"you said hello"


@asynchronous
async def test_programs_of_nats_hear_what_a_clique_publishes(nats_server: NatsServer, unique) -> None:
    stream = unique("orders")
    async with (
        Clique(unique("pricing"), nats_server.address, codec=RecordCodec()) as clique,
        await nats.connect(nats_server.address) as other,
    ):
        subscription = await other.subscribe(stream)
        await other.flush()
        await other.flush()  # the first ping may have overtaken the subscription
        await clique.publish(stream, b"plain bytes")
        assert (await subscription.next_msg(timeout=WAIT_S)).data == b"plain bytes"
        with pytest.raises(CliqueError, match="RecordCodec carries no key"):
            await clique.publish(stream, b"...", key=b"alice")


@asynchronous
async def test_a_message_that_is_published_right_after_a_subscription_arrives(
    nats_server: NatsServer, unique
) -> None:
    """Often, because the client of NATS lets its ping overtake a subscription now and then."""
    subject = unique("orders")
    ours, theirs = NatsPubSub(nats_server.address), NatsPubSub(nats_server.address)
    await ours.connect()
    await theirs.connect()
    for number in range(300):
        arrived = asyncio.Event()

        async def note(delivery: Delivery, arrived: asyncio.Event = arrived) -> None:
            arrived.set()

        subscription = await ours.subscribe(f"{subject}.{number}", note, "group")
        await theirs.publish(f"{subject}.{number}", b"...")
        async with asyncio.timeout(WAIT_S):
            await arrived.wait()
        await subscription.unsubscribe()
    await ours.close()
    await theirs.close()


@asynchronous
async def test_workers_survive_a_restart_of_the_server(tmp_path: Path, unique) -> None:
    """Its epochs are on disk: fencing tokens go on growing."""
    with NatsServer(tmp_path, jetstream=True) as server:
        async with World(server.address, unique("pricing"), unique("orders")) as world:
            workers = [world.recorder(f"w{number}") for number in range(2)]
            await world.started(*workers)
            epoch = workers[0].status().epoch
            await world.publish(workers[0], range(20))
            await world.log.wait_for_numbers(range(20))
            server.kill()
            await asyncio.sleep(0.5)
            server.start()
            number = 20
            async with asyncio.timeout(60):
                while number < 2_000 and max(run.number for run in world.log.runs) < 20:
                    # Messages to a worker that has not reconnected are lost.
                    await world.publish(workers[0], range(number, number + 10))
                    number += 10
                    await asyncio.sleep(0.2)
                for worker in workers:
                    await worker.wait_for_slots(WAIT_S)
            # There is no order between the messages of two publishers.
            await until(lambda: not any(worker.status().in_flight for worker in workers))
            await world.publish(workers[1], range(10_000, 10_020))
            runs = await world.log.wait_for_numbers(range(10_000, 10_020))
            assert workers[0].status().epoch >= epoch
            assert {run.worker for run in runs if run.number >= 10_000} == {"w0", "w1"}
    check_all(runs)


@asynchronous
async def test_messages_that_the_server_does_not_take_are_refused(tmp_path: Path, unique) -> None:
    stream = unique("orders")
    with NatsServer(tmp_path, jetstream=True, max_payload=64 * 1024) as server:
        async with World(server.address, unique("pricing"), stream) as world:
            workers = [world.recorder(f"w{number}") for number in range(2)]
            await world.started(*workers)
            with pytest.raises(OverLimit, match=r"the limit is 61440 \(of nats://127.0.0.1"):
                await workers[0].publish(stream, bytes(64 * 1024))
            # Many messages travel together between workers, and each message of the carrier stays below the limit.
            for number in range(60):
                await workers[0].publish(stream, b"%04000d" % number, key=b"key-%d" % number)
            await world.log.wait_for_numbers(range(60))


@asynchronous
async def test_a_message_of_another_program_that_cannot_be_forwarded_is_dropped_and_logged(
    tmp_path: Path, unique, caplog
) -> None:
    stream, got = unique("orders"), asyncio.Queue[tuple[str, int]]()
    with NatsServer(tmp_path, jetstream=True, max_payload=64 * 1024) as server:
        async with World(server.address, unique("pricing"), stream) as world:
            for worker in ("w1", "w2"):
                clique = world.clique(worker, codec=RecordCodec())

                @clique.handler(stream, key=lambda message: message.value[:8])
                async def note(message: Message, slot: Slot, worker: str = worker) -> None:
                    got.put_nowait((worker, len(message.value or b"")))

                await clique.start()
            for clique in world._cliques:
                await clique.wait_for_slots(WAIT_S)
            async with await nats.connect(server.address) as other:
                for number in range(40):
                    await other.publish(stream, b"%08d" % number + bytes(64 * 1024 - 8))
                await other.publish(stream, b"small")
                sizes = []
                async with asyncio.timeout(WAIT_S):
                    while 5 not in sizes:
                        sizes.append((await got.get())[1])
            await until(lambda: not any(clique.status().in_flight for clique in world._cliques))
    assert 64 * 1024 in sizes, "those whose owner got them from the carrier are handled"
    assert "cannot be forwarded to its owner" in caplog.text


@asynchronous
async def test_a_bucket_that_exists_is_used_as_it_is(tmp_path: Path, unique) -> None:
    with NatsServer(tmp_path, jetstream=True) as server:
        async with await nats.connect(server.address) as other:
            context = other.jetstream()
            await context.create_key_value(bucket=BUCKET, history=5)
            async with World(server.address, "pricing", unique("orders")) as world:
                await world.started(world.recorder("w1"))
            bucket = await context.key_value(BUCKET)
            assert (await bucket.status()).history == 5
            assert await bucket.keys() == ["clique.pricing"]


@asynchronous
async def test_a_server_that_is_not_there_is_named(monkeypatch) -> None:
    monkeypatch.setattr(nats_carrier, "CONNECT_SECONDS", 0.5)
    carrier = NatsPubSub(f"nats://user:secret@127.0.0.1:{free_port()}", connect_timeout=1)
    clique = Clique("pricing", carrier)
    with pytest.raises(
        Unreachable, match=r"nats://127.0.0.1:\d+: no server was reached within 0.5 s: no answer"
    ) as caught:
        await clique.start()
    assert "secret" not in str(caught.value) + repr(clique)


def test_without_the_extra_the_error_names_it() -> None:
    script = (
        "import sys; sys.modules['nats'] = None\n"
        "from penstock.clique import Clique, MissingExtra\n"
        "try:\n    Clique('pricing', 'nats://127.0.0.1:4222')\n"
        "except MissingExtra as missing:\n    print(missing)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'penstock[nats]'" in said


def test_cliques_load_neither_nats_nor_librdkafka_before_they_need_them() -> None:
    script = "import sys, penstock.clique; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "penstock.clique.clique" in loaded
    assert not {"nats", "confluent_kafka", "websockets"} & set(loaded)
    rooms = ("batch", "client", "clique", "ring", "types", "errors", "version", "effects", "timers")
    ours = [name for name in loaded if name.startswith("penstock.")]
    assert [name for name in ours if not name.startswith(tuple(f"penstock.{room}" for room in rooms))] == []
