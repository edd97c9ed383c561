"""Wrong arguments are refused when they are given, and the error says which and what was expected."""

import asyncio
import logging
import threading
from typing import Any, NoReturn

import pytest

from penstock.clique import Clique, CliqueError, JsonCodec, Message, Slot, Slots, TooWeak
from penstock.clique.limits import STREAMS_MAX
from penstock.clique.memory import MemoryPubSub
from tests.clique.world import WAIT_S, asynchronous


async def handler(message: Message, slot: Slot) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": ""}, "name=''"),
        ({"name": "a b"}, "name='a b': expected 1 to 200 of a-z"),
        ({"name": "x" * 201}, "1 to 200"),
        ({"name": "a..b"}, "dots only between"),
        ({"worker": "*"}, "worker='\\*'"),
        ({"lease_ms": 100}, "lease_ms=100: expected 500 to 600000"),
        ({"lease_ms": 8.0}, "lease_ms=8.0"),
        ({"concurrency": 0}, "concurrency=0: expected 1 to"),
        ({"codec": "json"}, "codec='json': expected an object with encode and decode"),
        ({"codec": JsonCodec}, r"JsonCodec'>: expected an object .*, such as JsonCodec\(\)"),
        ({"max_retries": 3}, "max_retries=...: there is no such option; those of retries are max_attempts"),
        ({"guarantee": "exactly-once"}, "guarantee='exactly-once': expected one of"),
        ({"carrier": "kafka://x"}, "carrier='kafka://x': expected penstock://"),
        ({"carrier": "memory://"}, "carrier='memory://'"),
        ({"carrier": object()}, "a PubSub; it has no connect, another"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"backoff": "1"}, "backoff='1': expected seconds"),
    ],
)
def test_a_clique_is_not_made_of_wrong_arguments(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises((ValueError, TypeError, CliqueError), match=expected):
        Clique(**{"name": "pricing", "carrier": "memory://arguments", **arguments})


@pytest.mark.parametrize(
    ("arguments", "function", "expected"),
    [
        ({"stream": "orders.*"}, handler, "stream='orders.\\*'"),
        ({"timeout": 0}, handler, "timeout=0: expected more than 0"),
        ({"timeout": 5}, lambda message, slot: None, "a thread cannot be interrupted"),
        ({"codec": object()}, handler, "codec=<object"),
        ({"attempts": 3}, handler, "attempts=...: there is no such option"),
        ({"key": "customer"}, handler, "key='customer': expected a function"),
        ({"max_attempts": 0}, handler, "max_attempts=0"),
        ({}, lambda message: None, r"is called with \(message, slot\)"),
        ({}, "handler", "is not a handler"),
    ],
)
def test_a_handler_is_not_registered_with_wrong_arguments(arguments, function, expected) -> None:
    clique = Clique("pricing", "memory://arguments")
    with pytest.raises((ValueError, TypeError), match=expected):
        clique.handler(**{"stream": "orders", **arguments})(function)


def test_a_decorator_without_its_stream_is_refused() -> None:
    clique = Clique("pricing", "memory://arguments")
    with pytest.raises(TypeError, match=r"stream=<function handler.*: expected text"):
        clique.handler(handler)  # type: ignore[arg-type]


def test_a_stream_has_one_handler_and_one_responder() -> None:
    clique = Clique("pricing", "memory://arguments")
    clique.handler("orders")(handler)
    clique.responder("orders")(handler)
    with pytest.raises(ValueError, match="has a handler for 'orders' already"):
        clique.handler("orders")(handler)


def test_callbacks_take_slots() -> None:
    clique = Clique("pricing", "memory://arguments")
    with pytest.raises(TypeError, match=r"is called with \(slots\)"):
        clique.on_acquire(lambda: None)


def test_the_streams_of_a_clique_are_bounded() -> None:
    clique = Clique("pricing", "memory://arguments")
    for number in range(STREAMS_MAX):
        clique.handler(f"orders-{number}")(handler)
    with pytest.raises(CliqueError, match="STREAMS_MAX"):
        clique.handler("one-more")(handler)


def test_the_default_clique_has_a_name() -> None:
    assert Clique(carrier="memory://arguments").name == "default"


def test_random_workers_have_different_names() -> None:
    names = {Clique(carrier="memory://arguments").worker for _ in range(10)}
    assert len(names) == 10


@asynchronous
async def test_handlers_are_registered_before_the_start(unique) -> None:
    clique = Clique("pricing", f"memory://{unique('hub')}")
    clique.handler("orders")(handler)
    async with clique:
        with pytest.raises(CliqueError, match="register all handlers before"):
            clique.handler("more")(handler)
        with pytest.raises(CliqueError, match="was started before"):
            await clique.start()


@asynchronous
async def test_a_carrier_that_is_too_weak_is_refused_at_the_start(unique) -> None:
    clique = Clique("pricing", f"memory://{unique('hub')}", guarantee="durable")
    with pytest.raises(TooWeak, match=r"memory://.* lacks durable messages. It gives: one owner at a time"):
        await clique.start()
    async with Clique("pricing", f"memory://{unique('hub')}", guarantee="at-least-once") as fine:
        assert fine.guarantee.level == "at-least-once"


class Unsubscribable(MemoryPubSub):
    """A carrier that refuses workers only after they are connected."""

    async def subscribe(self, *_args: object, **_options: object) -> NoReturn:
        raise CliqueError("not allowed to subscribe")


@asynchronous
async def test_a_start_that_fails_raises_the_error_of_the_carrier(unique) -> None:
    clique = Clique("pricing", Unsubscribable(unique("hub")))
    clique.handler("orders")(handler)
    with pytest.raises(CliqueError, match="not allowed to subscribe"):
        await clique.start()


@asynchronous
async def test_a_clique_of_a_name_that_is_taken_waits_for_it(unique) -> None:
    address = f"memory://{unique('hub')}"
    first, second = (Clique("pricing", address, worker="w1", lease_ms=4_000) for _ in range(2))
    for clique in (first, second):
        clique.handler("orders")(handler)
    async with first:
        starting = asyncio.create_task(second.start())
        await asyncio.sleep(6)
        assert not starting.done(), "the first one is alive, whatever its lease"
    await starting
    await second.close()


@asynchronous
async def test_a_plain_on_release_that_does_not_return_in_time_is_logged(unique) -> None:
    """Other workers wait for the slots, so it is told again and again."""
    clique = Clique("pricing", f"memory://{unique('hub')}", release_timeout=0.05)
    clique.handler("orders")(handler)
    told = threading.Event()

    class Teller(logging.Handler):
        times = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.times += "has not returned for" in record.getMessage()
            if self.times == 2:
                told.set()

    @clique.on_release
    def save(slots: Slots) -> None:
        assert told.wait(WAIT_S)

    teller = Teller()
    logging.getLogger("penstock.clique").addHandler(teller)
    try:
        async with clique:
            await clique.wait_for_slots(WAIT_S)
    finally:
        logging.getLogger("penstock.clique").removeHandler(teller)
    assert told.is_set()


@asynchronous
async def test_run_works_until_it_is_stopped(unique) -> None:
    clique = Clique("pricing", f"memory://{unique('hub')}")
    got = asyncio.Event()

    @clique.handler("orders")
    async def stop(message: Message, slot: Slot) -> None:
        got.set()

    running = asyncio.create_task(clique.run())
    while not clique.status().is_member:
        await asyncio.sleep(0.01)
    await clique.publish("orders", b"...")
    await got.wait()
    clique.stop()
    await running


def test_the_exit_of_a_handler_ends_run(unique) -> None:
    clique = Clique("pricing", f"memory://{unique('hub')}")

    @clique.handler("orders")
    async def leave(message: Message, slot: Slot) -> None:
        raise SystemExit(7)

    async def publish() -> None:
        while not clique.status().is_member:
            await asyncio.sleep(0.01)
        await clique.publish("orders", b"...")

    async def main() -> None:
        publishing = asyncio.create_task(publish())
        await clique.run(grace=1)
        await publishing

    with pytest.raises(SystemExit, match="7"):
        asyncio.run(main())
    assert not clique.status().is_member
