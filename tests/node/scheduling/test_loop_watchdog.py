"""Work that holds the event loop is counted and named."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from penstock.kafka.wire import ApiKey, RequestHeader
from penstock.node.metrics import NodeMetrics
from penstock.node.scheduling import loop_watchdog
from penstock.node.scheduling.loop_watchdog import LoopWatchdog, describe


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """With the watchdog's lines, which other tests leave out."""
    caplog.handler.filters.clear()
    return caplog


def hold_until_seen(watchdog: LoopWatchdog) -> None:
    """Holds the loop until the watchdog's thread has seen it."""
    while watchdog.cause is None:
        time.sleep(0.01)


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_turn_that_holds_the_loop_is_counted_and_logged_with_its_cause(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = NodeMetrics(0.0)
    monkeypatch.setattr(loop_watchdog, "waited_for_cpu", lambda _: 0.0)

    async def scenario() -> None:
        watchdog = LoopWatchdog(metrics)
        watchdog.start()
        hold_until_seen(watchdog)
        while metrics.slow_turns == 0:
            await asyncio.sleep(0.01)
        watchdog.stop()

    with caplog.at_level(logging.WARNING, "penstock.node"), asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scenario())
    assert metrics.slow_turns >= 1
    assert "hold_until_seen" in caplog.text


def test_a_late_turn_without_a_known_cause_is_counted_and_not_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = NodeMetrics(0.0)
    monkeypatch.setattr(loop_watchdog, "waited_for_cpu", lambda _: 0.0)

    async def scenario() -> None:
        watchdog = LoopWatchdog(metrics)
        # As if this process had been paused: its thread saw nothing either.
        watchdog._due = time.monotonic() - 1
        watchdog._on_timer()
        assert watchdog._timer is not None
        watchdog._timer.cancel()

    with caplog.at_level(logging.INFO, "penstock.node"):
        asyncio.run(scenario())
    assert metrics.slow_turns == 1
    mine = [record for record in caplog.records if record.thread == threading.get_ident()]
    assert not mine


def test_time_without_a_cpu_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = NodeMetrics(0.0)

    async def scenario() -> None:
        watchdog = LoopWatchdog(metrics)
        watchdog._due = time.monotonic() - 1
        watchdog.cause = "any function"
        monkeypatch.setattr(loop_watchdog, "waited_for_cpu", lambda _: 0.9)
        watchdog._on_timer()
        assert watchdog._timer is not None
        watchdog._timer.cancel()

    asyncio.run(scenario())
    assert metrics.slow_turns == 0


@pytest.mark.skipif(not Path(loop_watchdog.SCHEDULER_FILE).exists(), reason="the system does not tell")
def test_the_system_tells_how_long_a_thread_waited_for_a_cpu() -> None:
    async def scenario() -> tuple[float, float, float]:
        watchdog = LoopWatchdog(NodeMetrics(0.0))
        watchdog.start()
        before = loop_watchdog.waited_for_cpu(watchdog._scheduler_fd)
        after = loop_watchdog.waited_for_cpu(watchdog._scheduler_fd)
        watchdog.stop()
        return before, after, loop_watchdog.waited_for_cpu(watchdog._scheduler_fd)

    before, after, stopped = asyncio.run(scenario())
    assert after >= before > 0.0
    assert stopped == 0.0


def stack_of(function: Callable[[threading.Event, threading.Event], None]) -> str:
    """How the watchdog describes a thread that runs this function."""
    running, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=function, args=(running, done))
    thread.start()
    assert running.wait(60)
    try:
        frame = sys._current_frames()[thread.ident or 0]
        return describe(frame)
    finally:
        done.set()
        thread.join()


def test_the_kafka_api_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "penstock.kafka.handlers.example")

    def serve(running: threading.Event, done: threading.Event) -> None:
        header = RequestHeader(ApiKey.METADATA, 12, 1, None, 0)
        running.set()
        done.wait(60)
        del header

    assert stack_of(serve) == "API 3 (METADATA) (in penstock.kafka.handlers.example.serve)"


def test_the_http_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "__name__", "penstock.web.example")

    def serve(running: threading.Event, done: threading.Event) -> None:
        scope = {"method": "GET", "path": "/v1/queues"}
        running.set()
        done.wait(60)
        del scope

    assert stack_of(serve) == "GET /v1/queues (in penstock.web.example.serve)"
