"""Parts of a node start in order, stop in reverse, and get the same events."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.node import Partition
from penstock.node.parts import Part, Parts, TopicChanges
from penstock.types import TopicPartition
from tests.log_records import own_records


class Noted(Part):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self.problem: Exception | None = None
        self.stop_problem: Exception | None = None
        self.role_problem: Exception | None = None
        self.may_start: asyncio.Event | None = None

    async def start(self) -> None:
        if self.may_start is not None:
            await self.may_start.wait()
        if self.problem is not None:
            raise self.problem
        self.notes.append(f"start {self.name}")

    def role_changed(self, partition: Partition) -> None:
        if self.role_problem is not None:
            raise self.role_problem
        self.notes.append(f"{self.name} hears of {partition.name}")

    def metadata_changed(self, topics: TopicChanges) -> None:
        self.notes.append(f"{self.name} hears of {topics.changed[0]}")

    async def stop(self) -> None:
        self.notes.append(f"stop {self.name}")
        if self.stop_problem is not None:
            raise self.stop_problem


def play(scenario: Callable[[Parts, list[Noted], list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        notes: list[str] = []
        listed = [Noted(name, notes) for name in "abc"]
        parts = Parts()
        parts.set(listed)
        await scenario(parts, listed, notes)

    asyncio.run(run())


def test_stop_is_start_reversed_and_events_come_in_order() -> None:
    async def scenario(parts: Parts, listed: list[Noted], notes: list[str]) -> None:
        await parts.start()
        parts.metadata_changed(TopicChanges(("t",)))
        await parts.stop()
        assert notes == [
            *("start a", "start b", "start c"),
            *("a hears of t", "b hears of t", "c hears of t"),
            *("stop c", "stop b", "stop a"),
        ]

    play(scenario)


def test_all_parts_are_stopped_even_if_one_fails_and_the_first_error_is_raised() -> None:
    async def scenario(parts: Parts, listed: list[Noted], notes: list[str]) -> None:
        listed[2].stop_problem, listed[0].stop_problem = ValueError("first"), ValueError("second")
        with pytest.raises(ValueError, match="first"):
            await parts.stop()
        assert notes == ["stop c", "stop b", "stop a"]

    play(scenario)


def test_parts_after_one_that_waits_for_other_nodes_start_in_the_background() -> None:
    async def scenario(parts: Parts, listed: list[Noted], notes: list[str]) -> None:
        listed[1].waits_for_others, listed[1].may_start = True, asyncio.Event()
        await parts.start()
        assert notes == ["start a"]
        listed[1].may_start.set()
        while len(notes) < 3:
            await asyncio.sleep(0)
        assert notes == ["start a", "start b", "start c"]
        await parts.stop()

    play(scenario)


def test_a_failed_background_start_is_reported_and_a_waiting_one_ends_with_stop() -> None:
    async def scenario(parts: Parts, listed: list[Noted], notes: list[str]) -> None:
        listed[1].waits_for_others, listed[1].problem = True, ValueError("not admitted")
        await parts.start()
        with pytest.raises(ValueError, match="not admitted"):
            await parts.failed()
        await parts.stop()
        assert notes == ["start a", "stop c", "stop b", "stop a"]

    async def waiting(parts: Parts, listed: list[Noted], notes: list[str]) -> None:
        listed[1].waits_for_others, listed[1].may_start = True, asyncio.Event()
        await parts.start()
        await asyncio.sleep(0)
        await parts.stop()
        assert notes == ["start a", "stop c", "stop b", "stop a"]

    play(scenario)
    play(waiting)


def test_a_part_that_fails_on_a_new_role_is_logged_and_the_others_hear_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(parts: Parts, listed: list[Noted], notes: list[str]) -> None:
        listed[1].role_problem = ImportError("no such module")
        parts.role_changed(cast(Partition, SimpleNamespace(name=TopicPartition("t", 0))))
        assert notes == ["a hears of t-0", "c hears of t-0"]

    play(scenario)
    (line,) = own_records(caplog)
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ImportError)
