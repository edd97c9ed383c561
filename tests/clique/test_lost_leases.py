"""A worker whose lease ends for a moment, and that keeps its slots: the others did not see that it had ended."""

import asyncio
import threading

from penstock.client.retry_policy import WorkerPolicy
from penstock.clique import Message, Slot
from penstock.clique.handlers import new_handler
from penstock.clique.runner import HandlerRunner
from penstock.clique.work import Outcome, Returned, Work
from tests.clique.world import asynchronous, turns, until


class Leased:
    """All slots may be used as long as `has_lease`."""

    has_lease = True
    has_slot = True

    def __init__(self) -> None:
        self.used = 0

    def begin(self, slot: int) -> int | None:
        if not self.has_lease:
            return None
        self.used += 1
        return 7

    begin_nested = begin

    def end(self, slot: int) -> None:
        self.used -= 1

    def is_granted(self, slot: int) -> bool:
        return self.has_slot


class Carrier:
    """Delivers messages of one key."""

    def __init__(self, *, in_threads: bool = False) -> None:
        self.ownership = Leased()
        self.runner = HandlerRunner(self.ownership, 10, lambda problem: None)
        self.begun: list[int] = []
        self.attempts: list[int] = []
        self.returned: list[int] = []
        self.handled: list[int] = []
        self.may_end = asyncio.Event()
        self.thread_may_end = threading.Event()
        self.cancels_itself = False
        options = {
            "is_responder": False,
            "key": None,
            "codec": None,
            "policy": WorkerPolicy(),
            "timeout": None,
        }
        handle = self._handle_in_thread if in_threads else self._handle
        self._handler = new_handler("orders", handle, **options)  # type: ignore[arg-type]

    async def _handle(self, message: Message, slot: Slot) -> None:
        self.begun.append(int(message.value or b""))
        self.attempts.append(message.attempt)
        if self.cancels_itself:
            raise asyncio.CancelledError
        await self.may_end.wait()

    def _handle_in_thread(self, message: Message, slot: Slot) -> None:
        self.begun.append(int(message.value or b""))
        assert self.thread_may_end.wait(60)

    def deliver(self, number: int, table_epoch: int = 0) -> None:
        def settle(outcome: Outcome) -> None:
            (self.returned if isinstance(outcome, Returned) else self.handled).append(number)

        message = Message(stream="orders", value=b"%d" % number, key=b"key")
        self.runner.submit(
            Work(self._handler, message, key=message.key, slot=0, settle=settle, table_epoch=table_epoch)
        )


@asynchronous
async def test_messages_behind_one_whose_handler_was_stopped_do_not_overtake_it() -> None:
    carrier = Carrier()
    for number in range(4):
        carrier.deliver(number)
    await turns()
    carrier.ownership.has_lease = False
    assert carrier.runner.cancel_running() == 1
    await turns()
    assert carrier.begun == [0]
    carrier.ownership.has_lease = True
    carrier.may_end.set()
    carrier.runner.slots_changed()
    await turns()
    assert (carrier.begun, carrier.attempts) == ([0, 0, 1, 2, 3], [1] * 5)
    assert (carrier.handled, carrier.returned) == ([0, 1, 2, 3], [])
    assert carrier.runner.in_flight == carrier.ownership.used == 0


@asynchronous
async def test_a_message_whose_handler_was_stopped_goes_back_with_those_behind_it_if_the_slot_is_lost() -> (
    None
):
    carrier = Carrier()
    for number in range(4):
        carrier.deliver(number)
    await turns()
    carrier.runner.cancel_running()
    await turns()
    carrier.runner.take_back(lambda slot: True)
    assert (carrier.begun, carrier.returned) == ([0], [0, 1, 2, 3])
    assert carrier.runner.in_flight == carrier.ownership.used == 0


@asynchronous
async def test_messages_that_came_by_a_newer_table_wait_until_the_worker_knows_it() -> None:
    """They would come again behind later ones that are on their way, if the slot turns out to be this worker's."""
    carrier = Carrier()
    carrier.ownership.has_lease = False
    carrier.deliver(0, table_epoch=7)
    carrier.deliver(1, table_epoch=8)
    await turns()
    carrier.runner.take_back(lambda slot: True, known_epoch=7)
    assert carrier.returned == []
    carrier.runner.take_back(lambda slot: True, known_epoch=8)
    assert carrier.returned == [0, 1]


@asynchronous
async def test_a_message_of_a_lost_slot_goes_back_when_its_handler_was_stopped() -> None:
    carrier = Carrier()
    carrier.deliver(0)
    await turns()
    carrier.ownership.has_slot = False
    carrier.runner.cancel_running()
    await turns()
    assert (carrier.returned, carrier.ownership.used) == ([0], 0)


@asynchronous
async def test_a_message_whose_thread_cannot_be_stopped_begins_again_when_the_thread_has_ended() -> None:
    carrier = Carrier(in_threads=True)
    for number in range(2):
        carrier.deliver(number)
    await until(lambda: carrier.begun == [0])
    carrier.runner.cancel_running()
    await turns()
    carrier.runner.slots_changed()
    await turns()
    assert (carrier.begun, carrier.ownership.used) == ([0], 1)
    carrier.thread_may_end.set()
    await until(lambda: carrier.handled == [0, 1])
    assert (carrier.begun, carrier.returned) == ([0, 0, 1], [])
    assert carrier.runner.in_flight == carrier.ownership.used == 0


@asynchronous
async def test_a_message_whose_handler_is_stopped_at_the_end_goes_back() -> None:
    carrier = Carrier()
    carrier.deliver(0)
    await turns()
    assert not await carrier.runner.stop(0.0)
    assert (carrier.returned, carrier.ownership.used) == ([0], 0)


@asynchronous
async def test_a_message_whose_handler_cancels_itself_goes_back() -> None:
    carrier = Carrier()
    carrier.cancels_itself = True
    carrier.deliver(0)
    await turns()
    assert (carrier.returned, carrier.ownership.used) == ([0], 0)
