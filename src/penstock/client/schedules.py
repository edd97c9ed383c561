"""Schedules: when jobs are due that no program publishes by hand. Decides only; schedule_thread.py waits and publishes.

A tick is a moment at which a schedule is due. All schedulers compute the same ticks, whenever they start: those of an
interval are multiples of it since 1970, those of a cron expression are in a time zone that the schedule names. The
message id of a tick's job is `name@tick`, and the topic remembers ids for longer than a scheduler makes up for ticks.
So any number of schedulers publish one job for each tick.

Invariants:
 1. Two schedulers compute the same ticks, and the same message id for each.
 2. A scheduler publishes no tick that is older than `catch_up_s`, and the topic's deduplication window is longer than
    that. So a tick that another scheduler has published long ago is not published again.
 3. A scheduler that was held up for LATE_SECONDS at most publishes every tick. After a longer gap (the machine slept,
    or the scheduler was not running) it publishes the latest tick only: a program that was away for a night should not
    do eight hourly jobs at once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from typing import Final, Protocol
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from penstock.client.arguments import MESSAGE_ID, Seconds, as_bytes, as_ms, as_seconds, record_headers
from penstock.client.publishing import OutgoingMessage

UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LATE_SECONDS: Final = 60.0
CATCH_UP_SECONDS: Final = 86_400.0
FREQUENT_CATCH_UP_SECONDS: Final = 3_600.0
"""Of schedules with several ticks a minute: the broker keeps an id in memory for each."""
CATCH_UP_SECONDS_MAX: Final = 30 * 86_400.0
WINDOW_MARGIN_SECONDS: Final = 900.0
"""By how much the window is longer than `catch_up_s` (2): clocks differ, and publishing takes its time."""


class Ticks(Protocol):
    def after(self, moment: float) -> Iterator[float]:
        """The ticks later than the moment, in seconds since 1970, without end."""
        ...


@dataclass(frozen=True)
class IntervalTicks:
    seconds: int

    def after(self, moment: float) -> Iterator[float]:
        tick = (moment // self.seconds + 1) * self.seconds
        while True:
            yield tick
            tick += self.seconds


@dataclass(frozen=True)
class CronTicks:
    expression: str
    zone: tzinfo

    def after(self, moment: float) -> Iterator[float]:
        began = datetime.fromtimestamp(moment // 1, self.zone)
        return (tick.timestamp() for tick in CronSim(self.expression, began))


def interval_ticks(interval: str | Seconds) -> IntervalTicks:
    """Of "90s", "15m", "1h" or "1d", of seconds, or of a timedelta."""
    seconds: float = 0
    if isinstance(interval, str):
        found = re.fullmatch(r"(\d{1,9})([smhd])", interval.strip())
        if found is not None:
            seconds = int(found[1]) * UNIT_SECONDS[found[2]]
    else:
        seconds = as_seconds("interval", interval)
    if not (1 <= seconds <= 365 * 86_400 and seconds == int(seconds)):
        raise ValueError(
            f"interval={interval!r}: expected whole seconds, 1 second to 365 days: 30, '90s', '15m', '1h', '1d'"
        )
    return IntervalTicks(int(seconds))


def cron_ticks(expression: str, tz: str | tzinfo) -> CronTicks:
    """Of five fields: minute, hour, day of the month, month, day of the week."""
    told = f"cron({expression!r})"
    zone = tz
    if isinstance(zone, str):
        try:
            zone = ZoneInfo(zone)
        except (LookupError, ValueError, OSError):
            raise ValueError(
                f"tz={tz!r}: expected the name of a time zone, such as 'Europe/Vienna'"
            ) from None
    if len(expression.split()) != 5:
        raise ValueError(f"{told}: expected minute, hour, day of month, month, day of week: '0 3 * * *'")
    try:
        next(CronSim(expression, datetime.now(zone)))
    except CronSimError as wrong:
        raise ValueError(f"{told}: {wrong}") from None
    except StopIteration:
        raise ValueError(f"{told}: it is never due") from None
    return CronTicks(expression, zone)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    name: str
    ticks: Ticks
    catch_up_s: float
    ttl_s: float | None

    @property
    def topic(self) -> str:
        """The topic, and the queue on it, of the jobs of this schedule alone."""
        return f"schedule.{self.name}"

    @property
    def window_ms(self) -> int:
        """The topic's deduplication window (2)."""
        return round((self.catch_up_s + WINDOW_MARGIN_SECONDS) * 1000)

    def job(self, tick: float) -> OutgoingMessage:
        moment = datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
        value = msgspec.json.encode({"schedule": self.name, "tick": moment})
        headers = record_headers(None, message_id=f"{self.name}@{moment}", ttl=self.ttl_s)
        return OutgoingMessage(self.topic, value, None, headers, None)

    def latest(self, now: float) -> float | None:
        """The last tick until now that is not too old (2)."""
        last = None
        for tick in self.ticks.after(now - self.catch_up_s):
            if tick > now:
                break
            last = tick
        return last


def new_schedule(
    name: str, ticks: Ticks, catch_up: Seconds | None, ttl: Seconds | None, now: float
) -> Schedule:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", name):
        raise ValueError(f"name={name!r}: expected 1 to 200 of a-z, A-Z, 0-9, '.', '_' and '-'; give a name=")
    first, second = _first_two(ticks, now)
    default = CATCH_UP_SECONDS if second - first >= 60 else FREQUENT_CATCH_UP_SECONDS
    catch_up_s = default if catch_up is None else as_seconds("catch_up", catch_up)
    if not LATE_SECONDS <= catch_up_s <= CATCH_UP_SECONDS_MAX:
        raise ValueError(f"catch_up={catch_up!r}: expected 1 minute to 30 days")
    ttl_s = None if ttl is None else as_ms("ttl", ttl) / 1000
    return Schedule(name=name, ticks=ticks, catch_up_s=catch_up_s, ttl_s=ttl_s)


def _first_two(ticks: Ticks, now: float) -> tuple[float, float]:
    return next(pairwise(ticks.after(now)))


class ScheduleState:
    """The ticks of one schedule that a scheduler has to publish."""

    def __init__(self, schedule: Schedule, now: float, *, is_new: bool) -> None:
        """`is_new`: the schedule has never been due. Otherwise the last tick may have been missed, and is published
        again, which makes no second job (1, 2)."""
        self.schedule = schedule
        last = None if is_new else schedule.latest(now)
        self.unpublished: list[float] = [] if last is None else [last]
        self.next_tick = next(schedule.ticks.after(now))

    def advance(self, now: float) -> None:
        """Adds the ticks until now, and drops those that are too old."""
        if now >= self.next_tick:
            self.unpublished += self._missed(now)
            self.next_tick = next(self.schedule.ticks.after(now))
        self.unpublished = [tick for tick in self.unpublished if now - tick <= self.schedule.catch_up_s]

    def _missed(self, now: float) -> list[float]:
        if now - self.next_tick > LATE_SECONDS:
            last = self.schedule.latest(now)
            return [] if last is None else [last]
        found = [self.next_tick]
        for tick in self.schedule.ticks.after(self.next_tick):
            if tick > now:
                return found
            found.append(tick)
        return found


def tick_id(message: OutgoingMessage) -> str:
    """For log lines."""
    return (as_bytes("id", dict(message.headers)[MESSAGE_ID]) or b"").decode()
