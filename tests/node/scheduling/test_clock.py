"""Steady time follows the event loop, not the machine's clock."""

import asyncio

from penstock.node.scheduling.clock import SteadyClock


class SettableClock:
    def __init__(self, wall_ms: int) -> None:
        self.now = wall_ms

    def wall_ms(self) -> int:
        return self.now


def test_setting_the_machines_clock_does_not_move_steady_time() -> None:
    async def scenario() -> None:
        clock = SettableClock(1_000_000)
        steady = SteadyClock(clock)
        clock.now = 5
        before = steady.now_ms()
        assert before >= 1_000_000
        clock.now = 10**12
        assert before <= steady.now_ms() < 10**9

    asyncio.run(scenario())


class FixedLoop(asyncio.SelectorEventLoop):
    fixed: float | None = None

    def time(self) -> float:
        return self.fixed if self.fixed is not None else super().time()


def test_steady_time_is_never_ahead_of_the_wall_time_that_it_started_from() -> None:
    async def scenario() -> None:
        loop.fixed = 7.0009  # 0.9 ms into a millisecond of the loop, while the wall clock shows a whole one
        steady = SteadyClock(SettableClock(1_000_000))
        loop.fixed = 9.0005
        assert steady.now_ms() == 1_001_999
        loop.fixed = None

    loop = FixedLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
