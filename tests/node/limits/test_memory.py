"""Memory of clients: reserved before it is used, given back exactly, and granted in turn."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.node.limits.memory import MemoryBudget, Reservation, unlimited

LIMIT = 1600
SMALL = 100
"""A sixteenth of the limit; a quarter of it, 400, is kept for small holders."""


def budget_with(used: int) -> tuple[MemoryBudget, Reservation]:
    budget = MemoryBudget("limits.max_client_memory_bytes", LIMIT)
    return budget, budget.reserve(used)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


async def turn_of_the_loop() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("used", "room", "free"),
    [
        (0, 1200, 1600),
        (1000, 200, 600),
        (1100, SMALL, 500),  # the rest is kept for small responses, and for single batches
        (1500, SMALL, 100),
        (1501, 0, 99),
        (2000, 0, 0),
    ],
)
def test_responses_get_smaller_as_memory_runs_out(used: int, room: int, free: int) -> None:
    budget, _ = budget_with(used)
    assert (budget.room, budget.free) == (room, free)


def test_everything_that_is_taken_is_given_back_once() -> None:
    budget, first = budget_with(300)
    second = budget.reserve(200)
    second.take(50)
    assert second.try_take(100)
    assert not second.try_take(LIMIT)
    assert first.try_take_large(500)
    assert not first.try_take_large(500)
    assert budget.used == 300 + 200 + 50 + 100 + 500
    second.resize(70)
    assert (first.bytes, second.bytes, budget.used) == (800, 70, 870)
    first.give_back(70)
    assert (first.bytes, budget.used) == (730, 800)
    for reservation in (first, second, first):
        reservation.release()
    assert (first.bytes, second.bytes, budget.used) == (0, 0, 0)


def test_turns_come_in_order_and_a_small_one_does_not_overtake_a_large_one() -> None:
    async def scenario() -> None:
        budget, holder = budget_with(LIMIT)
        order: list[str] = []

        async def waits(name: str, count: int) -> None:
            memory = budget.reserve()
            await memory.wait_for(count)
            order.append(name)

        tasks = [asyncio.create_task(waits(*each)) for each in (("large", 500), ("small", 10), ("last", 90))]
        await turn_of_the_loop()
        holder.give_back(400)
        await turn_of_the_loop()
        assert order == []
        assert budget.room == 0
        holder.give_back(110)
        await turn_of_the_loop()
        assert order == ["large", "small"]
        holder.give_back(90)
        await asyncio.gather(*tasks)
        assert order == ["large", "small", "last"]
        assert budget.used == LIMIT
        assert budget.waits == 3

    play(scenario)


def test_large_requests_wait_for_their_part_and_leave_the_rest_to_others() -> None:
    async def scenario() -> None:
        budget, holder = budget_with(1100)
        large, come = budget.reserve(), list[str]()
        assert not large.try_take_large(200)
        large.line_up(200, lambda: come.append("large"), large=True)
        assert budget.room == SMALL  # the large zone belongs to the one that waits
        small = budget.reserve()
        assert small.try_take(300)
        small.release()
        assert come == []
        holder.give_back(100)
        assert come == ["large"]
        assert large.bytes == 200
        assert budget.used == 1200

    play(scenario)


def test_a_cancelled_wait_takes_nothing_and_lets_the_next_one_pass() -> None:
    async def scenario() -> None:
        budget, holder = budget_with(LIMIT)
        first, second = budget.reserve(), budget.reserve()
        large = asyncio.create_task(first.wait_for(800))
        small = asyncio.create_task(second.wait_for(100))
        await turn_of_the_loop()
        holder.give_back(100)
        large.cancel()
        await small
        assert (first.bytes, second.bytes, budget.used) == (0, 100, LIMIT)
        assert budget.first_turns == []

    play(scenario)


def test_a_wait_that_is_cancelled_in_the_moment_of_its_turn_gives_back_with_its_reservation() -> None:
    async def scenario() -> None:
        budget, holder = budget_with(LIMIT)
        memory = budget.reserve()
        task = asyncio.create_task(memory.wait_for(100))
        await turn_of_the_loop()
        holder.give_back(100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert memory.bytes == 100
        memory.release()
        assert budget.used == LIMIT - 100

    play(scenario)


def test_a_released_reservation_gets_no_turn() -> None:
    async def scenario() -> None:
        budget, holder = budget_with(LIMIT)
        memory = budget.reserve()
        memory.line_up(100, lambda: pytest.fail("its holder has gone"))
        memory.release()
        holder.release()
        assert (memory.bytes, budget.used) == (0, 0)

    play(scenario)


def test_a_batch_larger_than_the_budget_gets_its_turn_when_half_of_the_budget_is_free() -> None:
    async def scenario() -> None:
        budget, holder = budget_with(LIMIT)
        memory = budget.reserve()
        task = asyncio.create_task(memory.wait_for(10 * LIMIT))
        holder.give_back(LIMIT // 2 - 1)
        await turn_of_the_loop()
        assert not task.done()
        holder.give_back(1)
        await task
        assert budget.used > LIMIT
        assert budget.room == budget.free == 0
        memory.release()
        assert budget.used == LIMIT // 2

    play(scenario)


def test_what_is_missing_counts_all_that_wait_in_a_line() -> None:
    budget, _ = budget_with(1550)
    for count in (100, 200):
        budget.reserve().line_up(count, lambda: None)
    budget.reserve().line_up(50, lambda: None, large=True)
    assert [budget.missing_for(turn) for turn in budget.first_turns] == [250, 400]


def test_a_request_of_the_node_itself_is_not_limited() -> None:
    assert unlimited().budget.room > 2**60
