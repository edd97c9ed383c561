"""The owner's side of forwarding: every message runs once here, as far as this worker can know, and in order.

1. A message that is in hand does not run a second time: a copy of it only adds one that wants to know the outcome.
2. A message that was handled here does not run again: its acknowledgement was lost, and is repeated. The newest
   REMEMBERED_MAX are remembered, and those with a number as long as this worker owns their slot (ordering.py).
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from penstock.clique.clocks import lease_clock_ms
from penstock.clique.items import Item
from penstock.clique.limits import BUFFERED_BYTES_MAX, IN_FLIGHT_MAX, REMEMBERED_MAX
from penstock.clique.ordering import Resequencer, SequenceState
from penstock.clique.runner import HandlerRunner
from penstock.clique.work import Expired, Outcome, Returned, Work

Conclude = Callable[[Item, Outcome], "asyncio.Future[Any] | None"]
"""Sends the response or the dead letter, and tells those who want to know."""


class Inbox:
    """Items of slots that this worker owns, from their arrival to their outcome."""

    def __init__(
        self,
        runner: HandlerRunner,
        conclude: Conclude,
        reroute: Callable[[Item], None],
    ) -> None:
        self._runner = runner
        self._conclude = conclude
        self._reroute = reroute
        self._working: dict[str, Item] = {}
        self._remembered: dict[str, int] = {}
        """Handled messages without a number, with their slots, oldest first."""
        self._order: Resequencer[Item] = Resequencer()

    def __len__(self) -> int:
        return len(self._working)

    @property
    def has_room(self) -> bool:
        return len(self._working) < IN_FLIGHT_MAX and self._runner.buffered_bytes < BUFFERED_BYTES_MAX

    def knows(self, identity: str) -> bool:
        """Whether a copy of it costs no room."""
        return identity in self._working or identity in self._remembered

    def take(self, item: Item) -> None:
        """This worker owns the slot of the item."""
        in_hand = self._working.get(item.identity)
        if in_hand is not None:
            in_hand.sources += item.sources  # (1)
        elif item.identity in self._remembered:
            item.done()  # (2)
        elif item.mark is None or item.is_request:
            self._working[item.identity] = item
            self._run(item)
        else:
            self._working[item.identity] = item
            self._take_in_order(item)

    def _take_in_order(self, item: Item) -> None:
        assert item.mark is not None
        arrival = self._order.arrive(item.slot, item.stream, item.mark, item, _now())
        if arrival.is_duplicate:
            del self._working[item.identity]
            item.done()  # (2)
        self._run_all(arrival.admitted)

    def _run_all(self, items: Iterable[Item]) -> None:
        for item in items:
            self._run(item)

    def _run(self, item: Item) -> None:
        self._runner.submit(
            Work(
                item.handler,
                item.message,
                key=item.key,
                slot=item.slot,
                settle=partial(self._settled, item),
                is_request=item.is_request,
                attempts=item.attempts,
                chain=item.chain,
                deadline=item.deadline,
            )
        )

    def _settled(self, item: Item, outcome: Outcome) -> "asyncio.Future[Any] | None":
        self._working.pop(item.identity, None)
        if isinstance(outcome, Returned):
            item.attempts = outcome.attempts
            self._reroute(item)
            return None
        if not isinstance(outcome, Expired):
            self._remember(item)
        return self._conclude(item, outcome)

    def _remember(self, item: Item) -> None:
        if item.mark is not None:
            self._order.handled(item.slot, item.stream, item.mark)
            return
        self._remembered[item.identity] = item.slot
        if len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]

    # --- slots

    def tick(self) -> None:
        """Regularly: lets messages go on that have waited for earlier ones long enough."""
        self._run_all(self._order.overdue(_now()))

    def slots_changed(self, is_granted: Callable[[int], bool], is_held: Callable[[int], bool]) -> None:
        """Messages of slots that are not granted go elsewhere, except those whose handlers run. Sequences of slots that
        are still held are given up when nothing runs for them any more."""
        self._runner.take_back(lambda slot: not is_granted(slot))
        self.give_up([slot for slot in self._order.slots if not is_granted(slot) and not is_held(slot)])

    def give_up(self, slots: Iterable[int]) -> list[SequenceState]:
        """Nothing of these slots runs any more. Returns where their sequences are, for the next owners. If the slots
        come back, what on_acquire loads then may not have what was handled before: a copy of it runs again."""
        gone = frozenset(slots)
        self._remembered = {one: slot for one, slot in self._remembered.items() if slot not in gone}
        states, held = self._order.give_up(gone)
        for item in held:
            self._working.pop(item.identity, None)
            self._reroute(item)
        return states

    def go_on(self, states: Iterable[SequenceState]) -> None:
        """The previous owner tells where sequences are."""
        admitted, handled = self._order.go_on(states, _now())
        for item in handled:
            self._working.pop(item.identity, None)
            item.done()
        self._run_all(admitted)


def _now() -> float:
    return lease_clock_ms() / 1000
