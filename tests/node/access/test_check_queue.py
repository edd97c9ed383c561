"""The line of passwords that wait for their check."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from penstock.node.access import check_queue
from penstock.node.access.check_queue import CheckQueue
from penstock.security.errors import AuthenticationError

GUESSER, OTHER, THIRD = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Scene:
    """A queue whose thread is busy until `go_on`. Must be made on an event loop."""

    def __init__(self) -> None:
        self.queue = CheckQueue("test")
        self.may_go_on = threading.Event()
        self.done: list[str] = []
        self._first = asyncio.ensure_future(self.queue.run(self.may_go_on.wait, "first", is_suspect=False))

    async def add(self, host: str, name: str, *, is_suspect: bool = False) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(
            self.queue.run(lambda: self.done.append(name), host, is_suspect=is_suspect)
        )
        await asyncio.sleep(0)
        return task

    async def go_on(self, *tasks: "asyncio.Task[None]") -> list[object]:
        self.may_go_on.set()
        await self._first
        outcomes: list[object] = list(await asyncio.gather(*tasks, return_exceptions=True))
        assert self.queue._waiting == 0
        assert not self.queue._lines
        self.queue.stop()
        return outcomes


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_addresses_take_turns(runner: asyncio.Runner) -> None:
    async def scenario() -> list[str]:
        scene = Scene()
        guesses = [await scene.add(GUESSER, f"guess {number}") for number in range(4)]
        others = [await scene.add(OTHER, "other"), await scene.add(THIRD, "third")]
        await scene.go_on(*guesses, *others)
        return scene.done

    found = runner.run(scenario())
    assert found == ["guess 0", "other", "third", "guess 1", "guess 2", "guess 3"]


def test_a_newcomer_takes_the_place_of_the_last_in_the_longest_line(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_queue, "MAX_WAITING", 3)

    async def scenario() -> tuple[list[object], list[str]]:
        scene = Scene()
        tasks = [await scene.add(GUESSER, f"guess {number}") for number in range(4)]
        tasks.append(await scene.add(OTHER, "other"))
        return await scene.go_on(*tasks), scene.done

    outcomes, done = runner.run(scenario())
    refused = [isinstance(one, AuthenticationError) for one in outcomes]
    assert refused == [False, False, True, True, False], "the fourth found no place, the third lost its own"
    assert done == ["guess 0", "other", "guess 1"]


def test_an_address_with_failures_has_a_short_line(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_queue, "MAX_WAITING_SUSPECT", 1)

    async def scenario() -> list[object]:
        scene = Scene()
        tasks = [await scene.add(GUESSER, "guess", is_suspect=True) for _ in range(2)]
        tasks += [await scene.add(OTHER, "other") for _ in range(2)]
        return await scene.go_on(*tasks)

    refused = [isinstance(one, AuthenticationError) for one in runner.run(scenario())]
    assert refused == [False, True, False, False]


def test_those_who_leave_do_not_hold_up_the_others(runner: asyncio.Runner) -> None:
    async def scenario() -> list[str]:
        scene = Scene()
        gone = [await scene.add(GUESSER, "gone"), await scene.add(OTHER, "gone")]
        staying = await scene.add(THIRD, "here")
        for task in gone:
            task.cancel()
        await scene.go_on(*gone, staying)
        return scene.done

    assert runner.run(scenario()) == ["here"]


def test_one_that_leaves_when_its_turn_has_come_does_not_hold_up_the_others(runner: asyncio.Runner) -> None:
    async def scenario() -> list[str]:
        scene = Scene()
        first, second = await scene.add(GUESSER, "gone"), await scene.add(OTHER, "here")
        scene.may_go_on.set()
        await scene._first  # in this moment it is the turn of the next one, which does not run yet
        first.cancel()
        await scene.go_on(first, second)
        return scene.done

    assert "here" in runner.run(scenario())
