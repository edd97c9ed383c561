"""The handlers of an application, registered by decorators: workers of queues, and schedules."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any, Final, TypeVar, Unpack

from penstock.client.arguments import Seconds, queue_and_topics, wait_seconds
from penstock.client.errors import ClientError
from penstock.client.forks import ForkGuard
from penstock.client.retry_policy import WorkerPolicy
from penstock.client.schedules import Schedule, Ticks, cron_ticks, interval_ticks, new_schedule
from penstock.client.worker_counts import JobCounter, WorkerCounts
from penstock.client.worker_policy import WorkerOptions, WorkerPlan, plan_worker

Handler = TypeVar("Handler", bound=Callable[..., object])
NO_NAME: Final = ""


class HandlerRegistry(ABC):
    """`worker`, `every` and `cron`."""

    _awaits_handlers: bool

    def __init__(self) -> None:
        self._guard = ForkGuard()
        self._plans: list[WorkerPlan] = []
        self._schedules: list[Schedule] = []
        self._counter = JobCounter()

    def worker(
        self,
        name: str | Sequence[str],
        *,
        topic: str | Sequence[str] | None = None,
        group: str | None = None,
        concurrency: int = 1,
        max_attempts: int | None = None,
        backoff: Seconds = 1.0,
        backoff_factor: float = 2.0,
        max_backoff: Seconds = 300.0,
        jitter: float = 0.2,
        prefetch: int | None = None,
        standby: bool = False,
        timeout: Seconds | None = None,
    ) -> Callable[[Handler], Handler]:
        """Registers a handler for the jobs of a queue; `run` calls it. `name` and `topic` are those of `queue`.

        A job is acked when its handler returns and retried, later each time, when it raises; after `max_attempts` it is
        rejected. A handler may settle the job itself, or raise Retry or Reject.

        `timeout`: a handler that takes longer has failed. A coroutine is cancelled. A thread cannot be interrupted: it
        loses its job, its later acks are ignored, and another thread replaces it. None: no limit; the lease is renewed
        as long as the handler runs.

        AsyncClient awaits coroutine functions. It calls any other handler in a thread, where it may raise Retry or
        Reject but not settle the job itself; if it returns an awaitable, AsyncClient awaits that.
        """
        policy = WorkerPolicy(
            max_attempts=max_attempts,
            backoff_s=wait_seconds("backoff", backoff),
            backoff_factor=backoff_factor,
            max_backoff_s=wait_seconds("max_backoff", max_backoff),
            jitter=jitter,
        )

        queue, topics = queue_and_topics(name, topic, group)

        def register(handler: Handler) -> Handler:
            plan = plan_worker(
                topics,
                queue,
                handler,
                concurrency=concurrency,
                prefetch=prefetch,
                policy=policy,
                standby=standby,
                timeout=timeout,
                may_await=self._awaits_handlers,
            )
            self._plans.append(plan)
            return handler

        return register

    def every(
        self,
        interval: str | Seconds,
        *,
        name: str | None = None,
        catch_up: Seconds | None = None,
        ttl: Seconds | None = None,
        **options: Unpack[WorkerOptions],
    ) -> Callable[[Handler], Handler]:
        """Registers a handler that `run` calls at every multiple of an interval since 1970 in UTC: "30s", "15m", "1h",
        "1d", seconds, or a timedelta.

        Each tick is one job in the queue `schedule.NAME`, however many processes run the schedule; one worker handles
        it. `name`: by default that of the function. `catch_up`: how late a missed tick is made up for; by default a
        day, or an hour if there are several ticks a minute. `ttl`: a job that no worker has begun for so long expires.
        Other options are those of `worker`.
        """
        return self._scheduled(interval_ticks(interval), name, catch_up, ttl, options)

    def cron(
        self,
        expression: str,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        catch_up: Seconds | None = None,
        ttl: Seconds | None = None,
        **options: Unpack[WorkerOptions],
    ) -> Callable[[Handler], Handler]:
        """The same as `every`, at the times of a cron expression, such as "0 3 * * *", in a time zone."""
        return self._scheduled(cron_ticks(expression, tz), name, catch_up, ttl, options)

    def _scheduled(
        self,
        ticks: Ticks,
        name: str | None,
        catch_up: Seconds | None,
        ttl: Seconds | None,
        options: WorkerOptions,
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            chosen = name if name is not None else getattr(handler, "__name__", NO_NAME)
            schedule = new_schedule(chosen, ticks, catch_up, ttl, time.time())
            if any(one.name == schedule.name for one in self._schedules):
                raise ValueError(f"there is a schedule {schedule.name!r} already: give another name=")
            self.worker(schedule.topic, **options)(handler)
            self._schedules.append(schedule)
            return handler

        return register

    @abstractmethod
    def stop(self) -> None:
        """Asks `run` to end, and returns at once. If it is called before `run`, that ends as soon as it has begun."""

    @property
    def has_handlers(self) -> bool:
        """Whether a worker or a schedule is registered."""
        return bool(self._plans)

    def described_workers(self) -> list[dict[str, Any]]:
        """The registered workers, for people: queue, topics, handler and concurrency."""
        return [
            {
                "queue": plan.group,
                "topics": list(plan.topics),
                "handler": getattr(plan.handler, "__qualname__", repr(plan.handler)),
                "concurrency": plan.concurrency,
            }
            for plan in self._plans
        ]

    def worker_counts(self) -> WorkerCounts:
        """How many jobs the workers of this client have done, and how many they work on."""
        return self._counter.counts()

    def _check_plans(self) -> None:
        self._guard.check()
        if not self._plans:
            raise ClientError("no workers: decorate a handler with @client.worker(...) first")
