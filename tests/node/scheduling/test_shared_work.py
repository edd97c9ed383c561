"""Work whose result many callers want runs once for all that asked before it began."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.node.scheduling.shared_work import SharedWork


class Report:
    """Takes as long as the test wants, and returns the number of its run."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.problem: Exception | None = None
        self.work = SharedWork(self._make)

    async def _make(self) -> int:
        self.begun += 1
        number = self.begun
        await self.may_end.wait()
        if self.problem is not None:
            raise self.problem
        return number


def play(scenario: Callable[[Report], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Report())

    asyncio.run(run())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_callers_that_ask_together_share_one_run() -> None:
    async def scenario(report: Report) -> None:
        asked = [asyncio.ensure_future(report.work.result()) for _ in range(100)]
        await turns()
        report.may_end.set()
        assert await asyncio.gather(*asked) == [1] * 100

    play(scenario)


def test_a_caller_never_gets_the_result_of_a_run_that_had_begun_before_it_asked() -> None:
    """It may have changed something since."""

    async def scenario(report: Report) -> None:
        first = asyncio.ensure_future(report.work.result())
        await turns()
        later = [asyncio.ensure_future(report.work.result()) for _ in range(100)]
        await turns()
        assert report.begun == 1
        report.may_end.set()
        assert await first == 1
        assert await asyncio.gather(*later) == [2] * 100

    play(scenario)


def test_a_run_whose_callers_have_gone_ends_and_the_next_one_begins() -> None:
    async def scenario(report: Report) -> None:
        first = asyncio.ensure_future(report.work.result())
        await turns()
        first.cancel()
        second = asyncio.ensure_future(report.work.result())
        await turns()
        report.may_end.set()
        assert await second == 2

    play(scenario)


def test_an_error_goes_to_all_callers_of_its_run_and_to_no_other() -> None:
    async def scenario(report: Report) -> None:
        asked = [asyncio.ensure_future(report.work.result()) for _ in range(3)]
        await turns()
        report.problem = ValueError("broken")
        report.may_end.set()
        for one in asked:
            with pytest.raises(ValueError, match="broken"):
                await one
        report.problem = None
        assert await report.work.result() == 2

    play(scenario)
