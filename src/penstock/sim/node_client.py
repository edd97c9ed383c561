"""Clients as programs: each is a coroutine on an event loop of its own, and asks nodes what the handlers of the Kafka
port ask, without the port. A request or its answer may be late or lost, and a request may come a second time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import PenstockError
from penstock.node import Node
from penstock.sim.host import Host
from penstock.sim.loop import NodeLoop
from penstock.sim.scheduler import Process

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld

T = TypeVar("T")
Question = Callable[[Node], Awaitable[T]]

REQUEST_TIMEOUT_S = 0.6
ANSWER_S = 0.005
LATE_S = (0.05, 0.4, 2.0)
"""How much later a request comes a second time, which was delayed in the network."""


class NoAnswer(Exception):
    """Nothing came in time: the request may have been executed, or may be executed later."""


class NotReached(PenstockError):
    """The node is down: the request was surely not executed."""


def put(host: Host, question: Question[T], answer: Callable[[T | PenstockError], None]) -> bool:
    """Asks a node, and returns whether it is up. A node that stops or crashes then does not answer."""

    async def ask() -> None:
        try:
            answer(await question(host.node))
        except PenstockError as refused:
            answer(refused)
        except asyncio.CancelledError:
            # The node stops: its client hears nothing any more.
            return

    if host.ready:
        host.loop.enter(lambda: host.loop.create_task(ask()))
    return host.ready


class NodeClient(Process):
    """One program."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        super().__init__(name)
        self.world = world
        self.random: Random = world.random_for(name)
        self._loop = NodeLoop(  # type: ignore[abstract]  # sockets, signals and processes are missing on purpose
            world.scheduler, self, self.random, on_bug=world.found_bug
        )

    def start(self, program: Callable[[], Coroutine[None, None, None]]) -> None:
        self._loop.enter(lambda: self._loop.create_task(program()))

    def end(self) -> None:
        """The world is over."""
        self.world.bury(self._loop)

    def any_host(self) -> Host:
        return self.random.choice(self.world.hosts[: self.world.founders])

    def host(self, node_id: int) -> Host:
        return self.world.hosts[node_id - 1]

    async def pause(self, seconds: float) -> None:
        """About so long."""
        await asyncio.sleep(seconds * (0.5 + self.random.random()))

    async def ask(self, host: Host, question: Question[T], *, again: bool = False) -> T:
        """Raises NoAnswer, or what the node has raised. `again`: the same request comes once more, much later."""
        answered: asyncio.Future[T | PenstockError] = self._loop.create_future()
        scheduler = self.world.scheduler

        def arrived(result: T | PenstockError) -> None:
            if not answered.done():
                answered.set_result(result)

        def answer(result: T | PenstockError) -> None:
            scheduler.after(ANSWER_S, self, arrived, result)

        def reach() -> None:
            if not put(host, question, answer):
                answer(NotReached())

        scheduler.deliver(self.random.random() * 0.01, host, reach)
        if again:
            late = self.random.choice(LATE_S)
            scheduler.deliver(late, host, put, host, question, lambda result: None)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                result = await answered
        except TimeoutError:
            raise NoAnswer from None
        if isinstance(result, PenstockError):
            raise result
        return result
