"""A confirmation behaves as a future of the standard library does, also with several waiters."""

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from penstock.client.confirmations import Confirmation


def soon(act: Callable[[], object]) -> threading.Thread:
    """Does it in another thread, when this one probably waits."""

    def later() -> None:
        time.sleep(0.02)
        act()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


def test_a_caller_waits_for_the_result() -> None:
    future: Confirmation[int] = Confirmation()
    assert future.running()
    assert not future.done()
    thread = soon(lambda: future.set_result(5))
    assert future.result(10) == 5
    assert future.done()
    assert not future.running()
    assert future.exception() is None
    thread.join()


def test_a_caller_gets_the_exception_each_time() -> None:
    future: Confirmation[int] = Confirmation()
    thread = soon(lambda: future.set_exception(ValueError("no")))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            future.result(10)
    assert isinstance(future.exception(), ValueError)
    thread.join()


def test_a_caller_that_waits_in_vain_may_wait_again_and_leaves_nothing_behind() -> None:
    future: Confirmation[int] = Confirmation()
    for timeout in (0, -1, 0.01):
        with pytest.raises(TimeoutError):
            future.result(timeout)
        with pytest.raises(TimeoutError):
            future.exception(timeout)
    assert not future._done_callbacks
    thread = soon(lambda: future.set_result(6))
    assert future.result() == 6
    thread.join()


def test_several_threads_may_wait() -> None:
    future: Confirmation[int] = Confirmation()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(future.result, 10) for _ in range(4)]
        time.sleep(0.02)
        future.set_result(7)
        assert [one.result(10) for one in waiting] == [7] * 4


def test_it_cannot_be_cancelled() -> None:
    future: Confirmation[int] = Confirmation()
    assert not future.cancel()
    assert not future.cancelled()
    future.set_result(1)
    assert not future.cancel()


def test_callbacks_come_once_also_for_one_that_is_done_and_one_that_raises_stops_no_other() -> None:
    future: Confirmation[int] = Confirmation()
    seen: list[str] = []
    future.add_done_callback(lambda done: seen.append(f"first {done.result()}"))
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(lambda done: seen.append("third"))
    future.set_result(2)
    future.add_done_callback(lambda done: seen.append("late"))
    assert seen == ["first 2", "third", "late"]


def test_the_second_answer_is_an_error() -> None:
    future: Confirmation[int] = Confirmation()
    future.set_result(2)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(3)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ValueError())
    assert future.result() == 2


@pytest.mark.parametrize("callback_first", [True, False])
def test_the_standard_library_waits_for_it_beside_other_futures(callback_first: bool) -> None:
    ours: list[Confirmation[int]] = [Confirmation() for _ in range(3)]
    other: concurrent.futures.Future[int] = concurrent.futures.Future()
    seen: list[object] = []
    if callback_first:
        ours[0].add_done_callback(seen.append)
    ours[2].set_result(2)

    def finish() -> None:
        ours[0].set_result(0)
        ours[1].set_exception(ValueError())
        other.set_result(3)

    thread = soon(finish)
    done, pending = concurrent.futures.wait([*ours, other], timeout=10)
    assert done == {*ours, other}
    assert not pending
    assert list(concurrent.futures.as_completed([*ours, other], timeout=10))
    assert ours[0].result() == 0
    assert isinstance(ours[1].exception(), ValueError)
    assert seen == ([ours[0]] if callback_first else [])
    thread.join()


def test_an_event_loop_waits_for_it() -> None:
    future: Confirmation[int] = Confirmation()

    async def wait() -> int:
        return await asyncio.wrap_future(future)

    thread = soon(lambda: future.set_result(8))
    assert asyncio.run(wait()) == 8
    thread.join()


def test_threads_that_finish_wait_and_ask_at_once_lose_no_answer() -> None:
    """Also where a condition is made while the answer comes."""
    futures: list[Confirmation[int]] = [Confirmation() for _ in range(2_000)]
    called: list[int] = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for future in futures:
            future.add_done_callback(lambda done: called.append(done.result()))
        waiting = pool.submit(concurrent.futures.wait, futures, 30)
        asking = pool.submit(lambda: [future.result(30) for future in futures])
        adding = pool.submit(
            lambda: [future.add_done_callback(lambda one: called.append(-1)) for future in futures]
        )
        for number, future in enumerate(futures):
            future.set_result(number)
        assert not waiting.result(30).not_done
        assert asking.result(30) == list(range(2_000))
        adding.result(30)
    assert sorted(called) == [-1] * 2_000 + list(range(2_000))


def test_an_error_that_is_kept_does_not_keep_the_future() -> None:
    future: Confirmation[int] = Confirmation()
    future.set_exception(ValueError())
    gone = weakref.ref(future)
    gc.disable()
    try:
        with pytest.raises(ValueError) as caught:
            future.result()
        problem = caught.value
        del future, caught
        assert problem is not None
        assert gone() is None
    finally:
        gc.enable()
