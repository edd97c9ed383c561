"""Long work on the event loop is done in slices, and other work has its turn between them."""

import asyncio
from collections.abc import Iterator

import pytest

from penstock.node.scheduling.slices import SlicedWork, in_slices


class Pile:
    """Work of one step for each number."""

    def __init__(self, *numbers: int) -> None:
        self.left = list(numbers)
        self.done: list[int] = []
        self.work = SlicedWork(self._steps, steps_per_slice=3)

    def _steps(self) -> Iterator[None]:
        while self.left:
            number = self.left.pop(0)
            if number < 0:
                raise ValueError(number)
            self.done.append(number)
            yield


def test_work_of_one_slice_is_done_at_once() -> None:
    pile = Pile(1, 2)
    pile.work.start()
    assert pile.done == [1, 2]
    assert pile.work.is_idle


def test_more_work_is_done_slice_by_slice_with_turns_of_others_in_between() -> None:
    async def scenario() -> list[int]:
        pile = Pile(*range(8))
        pile.work.start()
        seen = [len(pile.done)]
        while not pile.work.is_idle:
            await asyncio.sleep(0)
            seen.append(len(pile.done))
        return seen

    assert asyncio.run(scenario()) == [3, 6, 8]


def test_work_that_comes_up_meanwhile_is_done_by_the_same_slices() -> None:
    async def scenario() -> list[int]:
        pile = Pile(*range(4))
        pile.work.start()
        pile.left.extend([8, 9])
        pile.work.start()
        assert len(pile.done) == 3
        await pile.work.finished()
        return pile.done

    assert asyncio.run(scenario()) == [0, 1, 2, 3, 8, 9]


def test_after_an_error_the_rest_can_be_started_again() -> None:
    async def scenario() -> list[int]:
        pile = Pile(1, -1, 2)
        with pytest.raises(ValueError, match="-1"):
            pile.work.start()
        await pile.work.finished()
        pile.work.start()
        return pile.done

    assert asyncio.run(scenario()) == [1, 2]


def test_items_come_with_a_pause_after_so_many() -> None:
    async def scenario() -> list[int]:
        taken: list[int] = []

        async def take() -> None:
            async for item in in_slices(range(7), 3):
                taken.append(item)  # noqa: PERF401 - seen one by one

        taking = asyncio.ensure_future(take())
        seen: list[int] = []
        while not taking.done():
            seen.append(len(taken))
            await asyncio.sleep(0)
        assert taken == list(range(7))
        return seen

    assert asyncio.run(scenario()) == [0, 3, 6]
