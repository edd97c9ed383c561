"""Services of a connection for handlers: a callback at its end, and holding back later requests."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Broker
from penstock.config import NodeConfig
from penstock.kafka.server import listener as listening
from penstock.kafka.server.connection import TURN_SECONDS, Connection
from penstock.kafka.wire import ApiKey, RequestHeader, encode_request, join
from penstock.kafka.wire.messages.metadata import MetadataRequest
from penstock.kafka.wire.messages.produce import ProduceRequest
from penstock.node.limits.memory import MemoryBudget, Reservation
from penstock.types import Caller
from tests.kafka.raw import RawClient

SETTINGS = NodeConfig().kafka_listeners[0]


class Listener:
    """Records started requests; answers none until told to."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(65536))
        self.limits = SimpleNamespace(max_in_flight_requests_per_connection=100, max_client_id_bytes=100)
        self.max_request_bytes = 65536
        self.memory = MemoryBudget("limits.max_client_memory_bytes", 1 << 20)
        self.is_full = False
        self.metrics = SimpleNamespace(bytes_in=0, bytes_out=0, request_done=lambda *_: None)
        self.now = 1.0
        self.node = None
        self.loop = asyncio.get_running_loop()
        self.started: list[int] = []
        self.callers: list[Caller] = []

    def admit(self, connection: Connection) -> bool:
        return True

    def forget(self, connection: Connection) -> None: ...

    def dispatch(
        self,
        connection: Connection,
        caller: Caller,
        header: RequestHeader,
        frame: memoryview,
        memory: Reservation,
    ) -> Coroutine[None, None, None]:
        self.started.append(header.correlation_id)
        self.callers.append(caller)
        return self._never_ends()

    async def _never_ends(self) -> None:
        await self.loop.create_future()


def play(scenario: Callable[[Listener, Connection], None]) -> None:
    async def run() -> None:
        listener: Any = Listener()
        connection = Connection(listener, SETTINGS)
        scenario(listener, connection)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(run())


def arrive(connection: Connection, *numbers: int) -> None:
    data = b"".join(
        join(encode_request(ApiKey.PRODUCE, 9, number, "c", ProduceRequest())) for number in numbers
    )
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def test_produce_requests_start_while_earlier_ones_wait_unless_one_holds_them() -> None:
    def scenario(listener: Listener, connection: Connection) -> None:
        arrive(connection, 1, 2)
        assert listener.started == [1, 2]
        let_go = connection.hold()
        arrive(connection, 3, 4)
        assert listener.started == [1, 2]
        let_go()
        assert listener.started == [1, 2, 3, 4]

    play(scenario)


def test_produce_requests_that_take_long_let_others_run_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(1.0, TURN_SECONDS * 0.6)
    monkeypatch.setattr("penstock.kafka.server.connection.time.perf_counter", lambda: next(times))
    turns: list[list[int]] = []

    async def run() -> None:
        listener: Any = Listener()
        connection = Connection(listener, SETTINGS)
        arrive(connection, *range(7))
        for _ in range(3):
            turns.append(list(listener.started))
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert turns == [[0, 1, 2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]]


def test_releasing_twice_releases_one_hold_only() -> None:
    def scenario(listener: Listener, connection: Connection) -> None:
        arrive(connection, 1)
        first, second = connection.hold(), connection.hold()
        arrive(connection, 2)
        first()
        first()
        assert listener.started == [1]
        second()
        assert listener.started == [1, 2]

    play(scenario)


def test_releasing_after_the_connection_has_ended_starts_nothing() -> None:
    def scenario(listener: Listener, connection: Connection) -> None:
        arrive(connection, 1)
        let_go = connection.hold()
        arrive(connection, 2)
        connection.connection_lost(None)
        let_go()
        assert listener.started == [1]

    play(scenario)


def test_each_end_callback_is_called_once_even_if_another_one_fails() -> None:
    async def run() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        listener: Any = Listener()
        connection, told = Connection(listener, SETTINGS), list[str]()

        def fails() -> None:
            raise RuntimeError("a bug")

        connection.when_closed(fails)
        connection.when_closed(lambda: told.append("a"))
        await asyncio.sleep(0)
        assert told == []
        connection.connection_lost(None)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        connection.when_closed(lambda: told.append("late"))
        await asyncio.sleep(0)
        assert told == ["a", "late"]
        assert [str(one["exception"]) for one in failures] == ["a bug"]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["client", "violation", "stop"])
def test_end_callbacks_are_called_whichever_side_ends_the_connection(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Connection] = []

    class Watched(Connection):
        __slots__ = ("told",)

        def __init__(self, listener: Any, settings: Any) -> None:
            super().__init__(listener, settings)
            self.told = asyncio.Event()
            self.when_closed(self.told.set)
            made.append(self)

    monkeypatch.setattr(listening, "Connection", Watched)
    with Broker(http=None) as broker:
        with RawClient(broker) as client:
            client.call(ApiKey.METADATA, 8, MetadataRequest(topics=[]))
            # Callbacks of other brokers in this process may be called too.
            [connection] = [one for one in made if one._listener.node is broker._thread.service.node]
            assert isinstance(connection, Watched)
            assert not connection.told.is_set()
            if how == "violation":
                client.send(b"\xff\xff\xff\xff")
                assert client.is_closed_by_broker()
            elif how == "stop":
                broker.close()
        service = broker._thread.service
        if how != "stop":
            waited = asyncio.run_coroutine_threadsafe(connection.told.wait(), _loop_of(service))
            waited.result(60)
    assert connection.told.is_set()


def _loop_of(service: Any) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = service.node.storage.flusher._cycle._loop
    return loop
