"""Publishes the jobs of schedules when they are due (schedules.py decides when). The blocking and the asyncio client
share this thread."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.client.admin import Admin
from penstock.client.errors import ClientError
from penstock.client.publishing import OutgoingMessage
from penstock.client.schedules import Schedule, ScheduleState, tick_id

log = logging.getLogger("penstock.client.schedules")

RETRY_SECONDS: Final = 1.0
"""Between two tries of a tick that could not be published, or of topics that could not be created."""
LOOK_AGAIN_SECONDS: Final = 30.0
"""The longest sleep: the wall clock may be set, and a machine may have slept."""

DEDUP_WINDOW: Final = "dedup.window.ms"


def declare(schedules: Sequence[Schedule], admin: Admin, is_stopped: Callable[[], bool]) -> None:
    """Creates the topics and queues of schedules. Waits for brokers that are away. Raises errors that waiting cannot
    repair."""
    for schedule in schedules:
        while not is_stopped():
            try:
                _declare(schedule, admin)
                break
            except ClientError as problem:
                if not problem.retriable:
                    raise
                log.warning("schedule %s: %s", schedule.name, problem)
                time.sleep(RETRY_SECONDS)


def _declare(schedule: Schedule, admin: Admin) -> None:
    admin.create_queue(schedule.topic, topic=schedule.topic, partitions=1)
    stored = admin.topic_configs(schedule.topic).get(DEDUP_WINDOW) or "0"
    if int(stored) < schedule.window_ms:
        admin.alter_topic(schedule.topic, {DEDUP_WINDOW: str(schedule.window_ms)})


class ScheduleThread:
    """Runs until it is closed."""

    def __init__(
        self,
        schedules: Sequence[Schedule],
        admin: Admin,
        publish: Callable[[OutgoingMessage], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._schedules = schedules
        self._admin = admin
        self._publish = publish
        self._clock = clock
        self._states: list[ScheduleState] = []
        self._complained_of = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-schedules", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Does not wait for a publish that is under way: another scheduler may publish that tick, too."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._begin()
            for state in self._states:
                state.advance(self._clock())
                self._publish_all(state)
            self._stopped.wait(self._sleep_seconds())

    def _begin(self) -> None:
        """Finds out which schedules have never been due: nothing is in their topics yet."""
        begun = {state.schedule.name for state in self._states}
        for schedule in self._schedules:
            if schedule.name in begun:
                continue
            try:
                is_new = not any(self._admin.topic_ends(schedule.topic).values())
            except ClientError as problem:
                log.warning("schedule %s: %s", schedule.name, problem)
                continue
            self._states.append(ScheduleState(schedule, self._clock(), is_new=is_new))

    def _publish_all(self, state: ScheduleState) -> None:
        while state.unpublished and not self._stopped.is_set():
            job = state.schedule.job(state.unpublished[0])
            try:
                self._publish(job)
            except ClientError as problem:
                self._failed(state.schedule, tick_id(job), problem)
                return
            log.info("published %s", tick_id(job))
            del state.unpublished[0]

    def _failed(self, schedule: Schedule, tick: str, problem: ClientError) -> None:
        if tick != self._complained_of:
            log.warning("%s is not published yet: %s", tick, problem)
            self._complained_of = tick
        if not problem.retriable:  # perhaps its topic was deleted
            with suppress(ClientError):
                _declare(schedule, self._admin)

    def _sleep_seconds(self) -> float:
        is_behind = len(self._states) < len(self._schedules) or any(one.unpublished for one in self._states)
        if is_behind:
            return RETRY_SECONDS
        due = min(state.next_tick for state in self._states)
        return min(max(due - self._clock(), 0.0), LOOK_AGAIN_SECONDS)
