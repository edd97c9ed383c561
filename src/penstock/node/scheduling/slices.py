"""Long work on the event loop, in slices: other work has its turn between two of them.

A slice has a number of steps and not a duration, so that the simulator repeats it exactly.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


async def in_slices(items: Iterable[T], per_turn: int) -> AsyncIterator[T]:
    """The items, with a pause after so many. Other code may change everything during a pause, so pass a copy of a
    collection that may change."""
    for count, item in enumerate(items, 1):
        yield item
        if count % per_turn == 0:
            await asyncio.sleep(0)


class SlicedWork:
    """Takes the steps of a generator: the first slice at once, each further one in a later turn of the event loop."""

    def __init__(self, make_steps: Callable[[], Iterator[None]], *, steps_per_slice: int) -> None:
        """`make_steps` returns a generator that ends when nothing is left to do, also of what came up meanwhile."""
        self._make_steps = make_steps
        self._most = steps_per_slice
        self._steps: Iterator[None] | None = None
        self._idle = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        return self._steps is None

    def start(self) -> None:
        """There is something to do. If that takes one slice or less, it is done when this returns, unless slices are
        under way already."""
        if self._steps is None:
            self._steps = self._make_steps()
            self._idle.clear()
            self._take_slice()

    async def finished(self) -> None:
        """Returns when nothing is left to do."""
        while self._steps is not None:
            await self._idle.wait()

    def _take_slice(self) -> None:
        assert self._steps is not None
        is_over = True
        try:
            is_over = sum(1 for _ in islice(self._steps, self._most)) < self._most
        finally:
            if is_over:
                self._steps = None
                self._idle.set()
            else:
                asyncio.get_running_loop().call_soon(self._take_slice)
