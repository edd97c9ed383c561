"""Schedules: all schedulers compute the same ticks, a tick is one job, and missed ticks are made up for once."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker
from penstock.client import AsyncClient, AsyncJob, Client, Job, schedule_thread
from penstock.client.publishing import OutgoingMessage
from penstock.client.schedule_thread import ScheduleThread, declare
from penstock.client.schedules import (
    CATCH_UP_SECONDS,
    FREQUENT_CATCH_UP_SECONDS,
    LATE_SECONDS,
    Schedule,
    ScheduleState,
    Ticks,
    cron_ticks,
    interval_ticks,
    new_schedule,
    tick_id,
)

SOON = 60.0
HOUR = 3600.0
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp()
Unique = Callable[[str], str]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.client")


def times(ticks: Ticks, after: float, count: int) -> list[str]:
    return [f"{datetime.fromtimestamp(tick, UTC):%d %H:%M:%S}" for tick in islice(ticks.after(after), count)]


def schedule(ticks: Ticks, catch_up: float | None = None) -> Schedule:
    return new_schedule("clean", ticks, catch_up, None, NOON)


def ids(one: Schedule, ticks: Iterable[float]) -> list[str]:
    return [tick_id(one.job(tick)) for tick in ticks]


# --- ticks


def test_intervals_are_multiples_since_1970() -> None:
    assert times(interval_ticks("1h"), NOON + 1, 2) == ["02 13:00:00", "02 14:00:00"]
    assert times(interval_ticks("15m"), NOON, 2) == ["02 12:15:00", "02 12:30:00"]
    assert times(interval_ticks(90), NOON - 1, 2) == ["02 12:00:00", "02 12:01:30"]
    assert interval_ticks(timedelta(days=1)) == interval_ticks("1d") == interval_ticks("24h")


@pytest.mark.parametrize("wrong", ["", "1", "h", "1.5h", "0s", "1w", "-1s", 0, 0.5, -1, float("nan"), "400d"])
def test_other_intervals_are_refused(wrong: str | float) -> None:
    with pytest.raises(ValueError, match="interval="):
        interval_ticks(wrong)


def test_cron_expressions_are_in_their_time_zone() -> None:
    assert times(cron_ticks("0 3 * * *", "UTC"), NOON, 2) == ["03 03:00:00", "04 03:00:00"]
    assert times(cron_ticks("30 9 * * MON-FRI", "Europe/Vienna"), NOON, 1) == ["03 08:30:00"]
    assert times(cron_ticks("*/20 12 * * *", ZoneInfo("UTC")), NOON, 3) == [
        "02 12:20:00",
        "02 12:40:00",
        "03 12:00:00",
    ]


def test_a_daily_job_comes_once_on_the_days_on_which_clocks_change() -> None:
    before_summer = datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()
    assert times(cron_ticks("30 2 * * *", "Europe/Vienna"), before_summer, 2) == [
        "29 01:00:00",
        "30 00:30:00",
    ]
    before_winter = datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp()
    assert times(cron_ticks("30 2 * * *", "Europe/Vienna"), before_winter, 2) == [
        "25 00:30:00",
        "26 01:30:00",
    ]


@pytest.mark.parametrize("wrong", ["", "* * * *", "0 0 3 * * *", "61 * * * *", "0 3 * * FOO", "0 0 30 2 *"])
def test_other_cron_expressions_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="cron"):
        cron_ticks(wrong, "UTC")
    with pytest.raises(ValueError, match="tz='Mars'"):
        cron_ticks("0 3 * * *", "Mars")


@given(st.floats(0, 1e10), st.sampled_from(["1s", "7s", "90s", "1h", "1d"]), st.floats(0, 1e5))
def test_schedulers_agree_on_ticks_whenever_they_start(start: float, interval: str, later: float) -> None:
    ticks = interval_ticks(interval)
    end = start + later + 10 * ticks.seconds
    wanted = [tick for tick in islice(ticks.after(start + later), 5) if tick <= end]
    found = [tick for tick in islice(ticks.after(start), 200_000) if start + later < tick <= wanted[-1]]
    assert found == wanted


# --- which ticks are published


def test_a_job_has_the_name_and_the_tick_as_its_message_id() -> None:
    job = schedule(interval_ticks("1h")).job(NOON)
    assert job.topic == "schedule.clean"
    assert tick_id(job) == "clean@2026-03-02T12:00:00Z"
    assert job.value == b'{"schedule":"clean","tick":"2026-03-02T12:00:00Z"}'


def test_a_new_schedule_begins_with_its_next_tick() -> None:
    state = ScheduleState(schedule(interval_ticks("1h")), NOON + 600, is_new=True)
    state.advance(NOON + 601)
    assert state.unpublished == []
    state.advance(NOON + HOUR)
    assert state.unpublished == [NOON + HOUR]


def test_a_scheduler_that_starts_again_makes_up_for_the_latest_tick_only() -> None:
    state = ScheduleState(schedule(interval_ticks("1h")), NOON + 5 * HOUR + 600, is_new=False)
    assert state.unpublished == [NOON + 5 * HOUR]


def test_a_tick_that_is_too_old_is_not_made_up_for() -> None:
    daily = schedule(cron_ticks("0 3 * * *", "UTC"), catch_up=2 * HOUR)
    assert ScheduleState(daily, NOON, is_new=False).unpublished == []
    at_four = NOON - 8 * HOUR
    assert ScheduleState(daily, at_four, is_new=False).unpublished == [NOON - 9 * HOUR]


def test_a_short_delay_costs_no_tick_and_a_long_one_all_but_the_latest() -> None:
    state = ScheduleState(schedule(interval_ticks("10s")), NOON, is_new=True)
    state.advance(NOON + LATE_SECONDS)
    assert state.unpublished == [NOON + 10 * number for number in range(1, 7)]
    state.unpublished.clear()
    state.advance(NOON + 1000)
    assert state.unpublished == [NOON + 1000]
    assert state.next_tick == NOON + 1010


def test_ticks_that_could_not_be_published_are_kept_until_they_are_too_old() -> None:
    state = ScheduleState(schedule(interval_ticks("30s"), catch_up=60), NOON, is_new=True)
    for seconds in range(0, 121, 10):
        state.advance(NOON + seconds)
    assert state.unpublished == [NOON + 60, NOON + 90, NOON + 120]


def test_the_window_outlasts_the_time_in_which_ticks_are_made_up_for() -> None:
    rare, frequent = schedule(interval_ticks("1m")), schedule(interval_ticks("59s"))
    assert (rare.catch_up_s, frequent.catch_up_s) == (CATCH_UP_SECONDS, FREQUENT_CATCH_UP_SECONDS)
    for one in (rare, frequent, schedule(interval_ticks("1h"), catch_up=7200)):
        assert one.window_ms > one.catch_up_s * 1000
    with pytest.raises(ValueError, match="catch_up=1"):
        schedule(interval_ticks("1h"), catch_up=1)


# --- with a broker


class Clock:
    """The wall clock of a scheduler. Each look moves it on, until the scheduler has seen the end."""

    def __init__(self, start: float, end: float, step: float) -> None:
        self._now, self._end, self._step = start, end, step
        self.is_over = threading.Event()

    def __call__(self) -> float:
        self._now = min(self._now + self._step, self._end)
        if self._now == self._end:
            self.is_over.set()
        return self._now


def stored_ids(client: Client, topic: str) -> Iterator[str]:
    with client.queue(topic, idle_s=2.0) as queue:
        for job in queue:
            yield (job.header("penstock-message-id") or b"").decode()
            job.ack()


def run_scheduler(client: Client, one: Schedule, clock: Clock, published: list[str]) -> None:
    """Until it has published the last tick."""

    def publish(job: OutgoingMessage) -> None:
        client._publish(job, SOON)
        published.append(tick_id(job))

    thread = ScheduleThread([one], client.admin, publish, clock)
    assert clock.is_over.wait(SOON)
    wanted = tick_id(one.job(NOON + 60))
    while wanted not in published:
        assert thread._thread.is_alive()
        threading.Event().wait(0.02)
    thread.close()
    thread._thread.join(SOON)


def test_two_schedulers_make_one_job_for_each_tick(
    broker: Broker, client: Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_thread, "LOOK_AGAIN_SECONDS", 0.01)  # their clocks run faster than ours
    one = new_schedule(unique("clean"), interval_ticks("5s"), None, None, NOON)
    declare([one], client.admin, lambda: False)
    client._publish(
        one.job(NOON), SOON
    )  # by a third one: each begins with the latest tick, which is stored already
    published: list[list[str]] = [[], []]
    with Client(broker.bootstrap_servers) as other:
        schedulers = [
            threading.Thread(target=run_scheduler, args=(who, one, Clock(NOON, NOON + 60, step), its))
            for who, step, its in ((client, 0.7, published[0]), (other, 1.1, published[1]))
        ]
        for thread in schedulers:
            thread.start()
        for thread in schedulers:
            thread.join(SOON)
    wanted = ids(one, [NOON + 5 * number for number in range(13)])
    assert published == [wanted, wanted]
    assert sorted(stored_ids(client, one.topic)) == sorted(wanted)
    again: list[str] = []
    run_scheduler(client, one, Clock(NOON, NOON + 60, 60), again)  # started again: the latest tick once more
    assert again == wanted[-1:]
    assert list(stored_ids(client, one.topic)) == []


def test_declaring_raises_a_window_that_is_too_short(client: Client, unique: Unique) -> None:
    one = new_schedule(unique("clean"), interval_ticks("1h"), None, None, NOON)
    client.admin.create_topic(one.topic, partitions=1, configs={"dedup.window.ms": "1000"})
    declare([one], client.admin, lambda: False)
    assert client.admin.topic_configs(one.topic)["dedup.window.ms"] == str(one.window_ms)
    client.admin.alter_topic(one.topic, {"dedup.window.ms": str(10 * one.window_ms)})
    declare([one], client.admin, lambda: False)
    assert client.admin.topic_configs(one.topic)["dedup.window.ms"] == str(10 * one.window_ms)


def test_a_handler_is_called_at_every_tick(client: Client, unique: Unique) -> None:
    name = unique("tick")
    ticks: list[str] = []

    @client.every("1s", name=name)
    def handle(job: Job) -> None:
        ticks.append(job.json()["tick"])
        if len(ticks) == 3:
            client.stop()

    assert client.run(signals=False)
    assert len(set(ticks)) == 3
    assert ticks == sorted(ticks)


def test_an_asynchronous_handler_is_called_at_every_tick(broker: Broker, unique: Unique) -> None:
    async def work() -> None:
        async with AsyncClient(broker.bootstrap_servers) as client:

            @client.every("1s", name=unique("tick"), concurrency=2)
            async def handle(job: AsyncJob) -> None:
                client.stop()

            assert await asyncio.wait_for(client.run(), SOON)
            client.stop()
            assert await client.run()

    asyncio.run(work())


def test_invalid_schedules_are_refused() -> None:
    client = Client("127.0.0.1:1")
    client.every("1h")(test_invalid_schedules_are_refused)
    with pytest.raises(ValueError, match="there is a schedule"):
        client.cron("0 3 * * *")(test_invalid_schedules_are_refused)
    with pytest.raises(ValueError, match="name="):
        client.every("1h")(lambda job: None)
    with pytest.raises(TypeError, match="concurency"):
        client.every("1h", name="x", concurency=2)(print)  # type: ignore[call-arg]
    client.stop()
    assert client.run(signals=False)  # before it has found a broker
    client.close()
