"""A message that has perhaps crashed an earlier owner is announced before its handler is called, and no sooner."""

import asyncio
from collections.abc import Callable

from penstock.client.retry_policy import WorkerPolicy
from penstock.clique import Message, Slot
from penstock.clique.handlers import Handler, new_handler
from penstock.clique.runner import HandlerRunner
from penstock.clique.work import Handled, Outcome, Returned, Work
from tests.clique.world import asynchronous, turns, until


class Owned:
    """Slot 0 cannot be started until `is_acquired`."""

    is_acquired = True

    def __init__(self) -> None:
        self.used = 0

    def begin(self, slot: int) -> int | None:
        if not self.is_acquired:
            return None
        self.used += 1
        return 7

    begin_nested = begin

    def end(self, slot: int) -> None:
        self.used -= 1

    def is_granted(self, slot: int) -> bool:
        return True


class Suspects:
    """Messages with a key each, all of which are to be announced."""

    def __init__(self, count: int, *, concurrency: int) -> None:
        self.ownership = Owned()
        self.runner = HandlerRunner(self.ownership, concurrency, lambda problem: None)
        self.announced: list[int] = []
        self.answers: list[Callable[[bool], None]] = []
        self.begun: list[int] = []
        self.outcomes: dict[int, Outcome] = {}
        self.may_end = asyncio.Event()
        self._handler = self._make_handler()
        self._count = count

    async def submit(self) -> None:
        for number in range(self._count):
            self.runner.submit(self._work(number))
        await turns()

    def _make_handler(self) -> Handler:
        async def handle(message: Message, slot: Slot) -> None:
            self.begun.append(int(message.value or b""))
            await self.may_end.wait()

        options = {
            "is_responder": False,
            "key": None,
            "codec": None,
            "policy": WorkerPolicy(),
            "timeout": None,
        }
        return new_handler("orders", handle, **options)  # type: ignore[arg-type]

    def _work(self, number: int) -> Work:
        def announce(told: Callable[[bool], None]) -> None:
            self.announced.append(number)
            self.answers.append(told)

        def settle(outcome: Outcome) -> None:
            self.outcomes[number] = outcome

        message = Message(stream="orders", value=b"%d" % number, key=b"key-%d" % number)
        return Work(self._handler, message, key=message.key, slot=0, settle=settle, announce=announce)


@asynchronous
async def test_no_more_messages_are_announced_than_handlers_may_run() -> None:
    suspects = Suspects(10, concurrency=2)
    await suspects.submit()
    assert (suspects.announced, suspects.begun) == ([0, 1], [])
    suspects.answers[1](True)
    await turns()
    assert (suspects.announced, suspects.begun) == ([0, 1], [1])
    suspects.answers[0](True)
    suspects.may_end.set()
    await turns()
    assert suspects.begun == [1, 0]
    while len(suspects.outcomes) < 10:
        suspects.answers[-1](True)
        suspects.answers[-2](True)
        await turns()
    assert set(suspects.outcomes.values()) == {Handled(None)}
    assert suspects.announced == list(range(10))
    assert suspects.ownership.used == 0


@asynchronous
async def test_a_message_whose_slot_is_not_acquired_yet_is_not_announced() -> None:
    suspects = Suspects(3, concurrency=2)
    suspects.ownership.is_acquired = False
    await suspects.submit()
    assert suspects.announced == []
    suspects.ownership.is_acquired = True
    suspects.runner.slots_changed()
    await turns()
    assert suspects.announced == [0, 1]


@asynchronous
async def test_a_message_that_is_taken_back_while_it_is_announced_does_not_begin() -> None:
    suspects = Suspects(1, concurrency=2)
    await suspects.submit()
    suspects.runner.take_back(lambda slot: True)
    assert suspects.outcomes == {0: Returned(0)}
    suspects.answers[0](True)
    await turns()
    assert (suspects.begun, suspects.runner.in_flight, suspects.ownership.used) == ([], 0, 0)


@asynchronous
async def test_an_announcement_that_was_not_noted_is_repeated() -> None:
    suspects = Suspects(1, concurrency=2)
    await suspects.submit()
    suspects.answers[0](False)
    await until(lambda: len(suspects.answers) == 2)
    assert suspects.begun == []
    suspects.answers[1](True)
    await turns()
    assert suspects.begun == [0]


@asynchronous
async def test_a_worker_whose_lease_ends_during_an_announcement_begins_the_message_when_it_owns_it_again() -> (
    None
):
    suspects = Suspects(1, concurrency=2)
    await suspects.submit()
    assert suspects.runner.cancel_running() == 1
    await turns()
    suspects.runner.slots_changed()
    await turns()
    assert suspects.announced == [0, 0]
    suspects.answers[1](True)
    await turns()
    assert suspects.begun == [0]
