"""asyncio programs run on the simulated loop as they do on a real one, only in virtual time."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from penstock.sim.disk import PowerCut
from penstock.sim.loop import NodeLoop
from penstock.sim.outcome import Violation
from penstock.sim.scheduler import Process, Scheduler
from penstock.sim.threads import SimThread


class LoopHarness:
    """One simulated process with its loop, and its timestamped output."""

    def __init__(self, rate: float = 1.0) -> None:
        self.scheduler = Scheduler(max_events=10_000)
        self.process = Process("n1")
        self.bugs: list[str] = []
        self.said: list[tuple[float, str]] = []
        self.loop = NodeLoop(
            self.scheduler,
            self.process,
            Random(1),
            rate=rate,
            on_bug=lambda message, problem: self.bugs.append(f"{message}: {problem!r}"),
        )

    def say(self, what: str) -> None:
        self.said.append((round(self.scheduler.time, 6), what))

    def run(self, program: Coroutine[Any, Any, Any], until: float = 100.0) -> "asyncio.Task[Any]":
        tasks: list[asyncio.Task[Any]] = []
        self.loop.enter(lambda: tasks.append(self.loop.create_task(program)))
        self.scheduler.run(until)
        return tasks[0]


def test_sleeping_takes_virtual_time_and_none_of_ours() -> None:
    harness = LoopHarness()

    async def program() -> None:
        for _ in range(3):
            await asyncio.sleep(3600)
            harness.say("slept")

    harness.run(program(), until=20_000)
    assert harness.said == [(3600, "slept"), (7200, "slept"), (10800, "slept")]


def test_a_clock_that_runs_fast_waits_less() -> None:
    harness = LoopHarness(rate=2.0)

    async def program() -> None:
        await asyncio.sleep(10)
        harness.say("slept")

    harness.run(program())
    assert harness.said == [(5, "slept")]


def test_timeouts_locks_events_and_shields_work() -> None:
    harness = LoopHarness()

    async def program() -> str:
        lock, event = asyncio.Lock(), asyncio.Event()

        async def holder() -> None:
            async with lock:
                await asyncio.sleep(1)
                event.set()

        task = asyncio.get_running_loop().create_task(holder())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.shield(task)
        harness.say("timed out")
        await event.wait()
        async with lock:
            harness.say("locked")
        done, _ = await asyncio.wait([task])
        return "ended" if task in done else "lost"

    assert harness.run(program()).result() == "ended"
    assert harness.said == [(0.5, "timed out"), (1, "locked")]


def test_a_job_of_a_thread_takes_its_time_and_its_result_comes_back() -> None:
    harness = LoopHarness()

    async def program() -> int:
        result = await asyncio.get_running_loop().run_in_executor(None, lambda: 42)
        harness.say("done")
        return result

    assert harness.run(program()).result() == 42
    assert harness.said[0][0] > 0


def test_jobs_of_one_thread_run_in_order_and_stopping_waits_for_them() -> None:
    harness = LoopHarness()
    thread = SimThread(harness.scheduler, harness.process, delay=lambda: 1.0, aim=lambda: None)

    async def program() -> None:
        for number in range(3):
            thread.submit(lambda number=number: harness.say(f"job {number}"))
        await thread.stop()
        harness.say("stopped")

    harness.run(program())
    assert harness.said == [(1, "job 0"), (2, "job 1"), (3, "job 2"), (3, "stopped")]


def test_timers_that_expire_during_a_pause_run_after_it_in_order() -> None:
    harness = LoopHarness()

    async def program() -> None:
        harness.loop.call_later(1, harness.say, "first")
        harness.loop.call_later(2, harness.say, "second")
        harness.loop.call_later(9, harness.say, "third")

    def pause() -> None:
        harness.process.paused = True

    harness.scheduler.at(0.5, None, pause)
    harness.scheduler.at(5, None, harness.scheduler.resume, harness.process)
    harness.run(program())
    assert harness.said == [(5, "first"), (5, "second"), (9, "third")]


def test_a_crash_ends_all_tasks_without_cleanup() -> None:
    harness = LoopHarness()

    async def program() -> None:
        try:
            await asyncio.sleep(2)
            harness.say("survived")
        finally:
            harness.say("cleaned up")

    harness.scheduler.at(1, None, harness.scheduler.crash, harness.process)
    harness.run(program())
    assert harness.said == []
    assert harness.bugs == []


def test_an_uncaught_exception_is_reported() -> None:
    harness = LoopHarness()

    async def program() -> None:
        harness.loop.call_soon(lambda: 1 // 0)

    harness.run(program())
    assert len(harness.bugs) == 1
    assert "ZeroDivisionError" in harness.bugs[0]


def test_an_endless_loop_without_waiting_is_stopped() -> None:
    harness = LoopHarness()

    async def program() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Violation, match="budget"):
        harness.run(program())


def test_a_power_cut_skips_the_rest_of_the_event_and_the_simulation_continues() -> None:
    harness = LoopHarness()

    def write() -> None:
        harness.say("before")
        raise PowerCut

    harness.scheduler.after(1.0, harness.process, write)
    harness.scheduler.after(2.0, None, harness.say, "after")
    harness.scheduler.run(3.0)
    assert harness.said == [(1.0, "before"), (2.0, "after")]
