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


class Stage:
    """One process with its loop, and what it said when."""

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
    stage = Stage()

    async def program() -> None:
        for _ in range(3):
            await asyncio.sleep(3600)
            stage.say("slept")

    stage.run(program(), until=20_000)
    assert stage.said == [(3600, "slept"), (7200, "slept"), (10800, "slept")]


def test_a_clock_that_runs_fast_waits_less() -> None:
    stage = Stage(rate=2.0)

    async def program() -> None:
        await asyncio.sleep(10)
        stage.say("slept")

    stage.run(program())
    assert stage.said == [(5, "slept")]


def test_timeouts_locks_events_and_shields_work() -> None:
    stage = Stage()

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
        stage.say("timed out")
        await event.wait()
        async with lock:
            stage.say("locked")
        done, _ = await asyncio.wait([task])
        return "ended" if task in done else "lost"

    assert stage.run(program()).result() == "ended"
    assert stage.said == [(0.5, "timed out"), (1, "locked")]


def test_a_job_of_a_thread_takes_its_time_and_its_result_comes_back() -> None:
    stage = Stage()

    async def program() -> int:
        result = await asyncio.get_running_loop().run_in_executor(None, lambda: 42)
        stage.say("done")
        return result

    assert stage.run(program()).result() == 42
    assert stage.said[0][0] > 0


def test_jobs_of_one_thread_run_in_order_and_stopping_waits_for_them() -> None:
    stage = Stage()
    thread = SimThread(stage.scheduler, stage.process, delay=lambda: 1.0, aim=lambda: None)

    async def program() -> None:
        for number in range(3):
            thread.submit(lambda number=number: stage.say(f"job {number}"))
        await thread.stop()
        stage.say("stopped")

    stage.run(program())
    assert stage.said == [(1, "job 0"), (2, "job 1"), (3, "job 2"), (3, "stopped")]


def test_what_comes_due_in_a_pause_happens_after_it_in_order() -> None:
    stage = Stage()

    async def program() -> None:
        stage.loop.call_later(1, stage.say, "first")
        stage.loop.call_later(2, stage.say, "second")
        stage.loop.call_later(9, stage.say, "third")

    def pause() -> None:
        stage.process.paused = True

    stage.scheduler.at(0.5, None, pause)
    stage.scheduler.at(5, None, stage.scheduler.resume, stage.process)
    stage.run(program())
    assert stage.said == [(5, "first"), (5, "second"), (9, "third")]


def test_a_crash_ends_everything_without_a_word() -> None:
    stage = Stage()

    async def program() -> None:
        try:
            await asyncio.sleep(2)
            stage.say("survived")
        finally:
            stage.say("cleaned up")

    stage.scheduler.at(1, None, stage.scheduler.crash, stage.process)
    stage.run(program())
    assert stage.said == []
    assert stage.bugs == []


def test_an_exception_that_nobody_catches_is_told() -> None:
    stage = Stage()

    async def program() -> None:
        stage.loop.call_soon(lambda: 1 // 0)

    stage.run(program())
    assert len(stage.bugs) == 1
    assert "ZeroDivisionError" in stage.bugs[0]


def test_what_goes_in_circles_is_stopped() -> None:
    stage = Stage()

    async def program() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Violation, match="budget"):
        stage.run(program())


def test_where_the_power_goes_the_rest_of_the_event_does_not_happen_and_the_world_goes_on() -> None:
    stage = Stage()

    def write() -> None:
        stage.say("before")
        raise PowerCut

    stage.scheduler.after(1.0, stage.process, write)
    stage.scheduler.after(2.0, None, stage.say, "after")
    stage.scheduler.run(3.0)
    assert stage.said == [(1.0, "before"), (2.0, "after")]
