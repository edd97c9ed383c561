"""SIGTERM and Ctrl-C: the first one ends workers gracefully, the second one ends the process; hosts keep their own."""

import signal

import pytest

from penstock import Broker
from penstock.client import Client
from tests.client.programs import Program

BLOCKING = """
import sys, threading
from penstock.client import Client

client = Client(sys.argv[1])

@client.worker(sys.argv[2], group=sys.argv[3])
def handle(job):
    print("begun")
    threading.Event().wait()

client.run(grace=3600)
"""

ASYNCIO = """
import asyncio, sys, threading, time
from penstock.client import AsyncClient

async def main():
    async with AsyncClient(sys.argv[1]) as client:

        @client.worker(sys.argv[2], group=sys.argv[3])
        HANDLER

        await client.run(grace=GRACE, signals=True)
    print("returned")

if sys.argv[4] == "uvloop":
    import uvloop as loops
else:
    import asyncio as loops
loops.run(main())
"""

HANGING = """async def handle(job):
            print("begun")
            await asyncio.Event().wait()"""
BLOCKS_THE_LOOP = """async def handle(job):
            print("begun")
            time.sleep(3600)"""
IN_A_THREAD = """def handle(job):
            print("begun")
            threading.Event().wait()"""

HOST = """
import asyncio, contextlib, sys
import uvicorn
from starlette.applications import Starlette
from penstock.client import AsyncClient

@contextlib.asynccontextmanager
async def lifespan(app):
    async with AsyncClient(sys.argv[1]) as client:

        @client.worker(sys.argv[2], group=sys.argv[3])
        async def handle(job):
            print("begun")
            await asyncio.sleep(0.5)
            print("finished")

        workers = asyncio.create_task(client.run())
        yield
        client.stop()
        print("all finished:", await workers)

uvicorn.run(Starlette(lifespan=lifespan), port=0, loop=sys.argv[4], log_level="warning")
print("the server has ended")
"""


def asyncio_program(handler: str, grace: float = 3600) -> str:
    return ASYNCIO.replace("HANDLER", handler).replace("GRACE", str(grace))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ignored", [False, True], ids=["foreground", "nohup"])
def test_a_second_signal_ends_a_program_whose_handler_hangs(
    broker: Broker, client: Client, topic: str, group: str, number: signal.Signals, ignored: bool
) -> None:
    client.publish(topic, b"x")
    with Program(BLOCKING, broker.bootstrap_servers, topic, group, ignores_interrupts=ignored) as program:
        program.wait_for("begun")
        program.send(number)
        program.wait_until_default(number)
        program.send(number)
        assert program.end() == -number


def test_the_second_signal_may_be_the_other_one(
    broker: Broker, client: Client, topic: str, group: str
) -> None:
    client.publish(topic, b"x")
    with Program(BLOCKING, broker.bootstrap_servers, topic, group) as program:
        program.wait_for("begun")
        program.send(signal.SIGINT)
        program.wait_until_default(signal.SIGTERM)
        program.send(signal.SIGTERM)
        assert program.end() == -signal.SIGTERM


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "handler", [HANGING, BLOCKS_THE_LOOP, IN_A_THREAD], ids=["waits", "blocks", "thread"]
)
def test_a_second_signal_ends_an_asynchronous_program_whose_handler_hangs(
    broker: Broker, client: Client, topic: str, group: str, handler: str, loop: str
) -> None:
    client.publish(topic, b"x")
    with Program(asyncio_program(handler), broker.bootstrap_servers, topic, group, loop) as program:
        program.wait_for("begun")
        program.send(signal.SIGTERM)
        program.wait_until_default(signal.SIGTERM)
        program.send(signal.SIGTERM)
        assert program.end() == -signal.SIGTERM


def test_a_handler_that_hangs_in_a_thread_does_not_keep_the_program_alive(
    broker: Broker, client: Client, topic: str, group: str
) -> None:
    client.publish(topic, b"x")
    script = asyncio_program(IN_A_THREAD, grace=0.1)
    with Program(script, broker.bootstrap_servers, topic, group, "asyncio") as program:
        program.wait_for("begun")
        program.send(signal.SIGTERM)
        program.wait_for("returned")
        assert program.end() == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_web_server_with_workers_inside_ends_when_it_is_told_to(
    broker: Broker, client: Client, topic: str, group: str, loop: str
) -> None:
    client.publish(topic, b"x")
    with Program(HOST, broker.bootstrap_servers, topic, group, loop) as program:
        program.wait_for("begun")
        program.send(signal.SIGTERM)
        program.wait_for("all finished: True")
        assert program.end() in (0, -signal.SIGTERM)  # uvicorn raises the signal again at its end
        assert "finished\n" in program.lines
    assert client.admin.queue(group).undone == 0
