"""What workers do with a job when its handler has ended: the decision, for threads and for coroutines alike."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from penstock.client.amounts import Seconds, as_seconds
from penstock.client.errors import ClientError
from penstock.client.work_session import Credit, Verdict

STUCK_MAX: Final = 100
"""Handlers of one worker that hang in threads nobody can interrupt. Each has been given a successor; more of them would
sooner or later take all memory, so the worker ends, and whoever supervises the process begins a new one."""
TIMEOUT_SECONDS_MAX: Final = 365 * 24 * 3600.0
"""Far less than what threads can wait for."""


class Retry(Exception):
    """Raise it in a handler: the job is to come again, after so many seconds (None: as the worker's backoff says).
    It is an attempt like any other: past max_attempts the job is rejected."""

    def __init__(self, message: str = "", *, delay: Seconds | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class Reject(Exception):
    """Raise it in a handler: the job can never be done, and goes to the dead-letter topic at once."""


class Decision(NamedTuple):
    verdict: Verdict
    delay_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPolicy:
    """How often, and how soon, a job is tried again."""

    max_attempts: int | None = None
    """None: as often as the queue's own limit lets it (share.delivery.count.limit, 5 by default)."""
    backoff_s: float = 1.0
    """After the first attempt; then `backoff_factor` times as long after each one."""
    backoff_factor: float = 2.0
    max_backoff_s: float = 300.0
    jitter: float = 0.2
    """By how much of itself a delay is shortened at most, by chance: what failed together should not come together."""

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts}: expected at least 1, or None")
        if (
            self.backoff_s < 0
            or self.max_backoff_s < 0
            or self.backoff_factor < 1
            or not 0 <= self.jitter <= 1
        ):
            raise ValueError(
                f"{self}: expected times of at least 0, a factor of at least 1 and a jitter of 0 to 1"
            )

    def decide(self, deliveries: int, problem: BaseException | None, random: Random) -> Decision:
        """What becomes of a job of which this was the `deliveries`th attempt."""
        if problem is None:
            return Decision("accept")
        if isinstance(problem, Reject):
            return Decision("reject")
        if self.max_attempts is not None and deliveries >= self.max_attempts:
            return Decision("reject")
        if isinstance(problem, Retry) and problem.delay is not None:
            return Decision("retry", as_seconds(problem.delay))
        return Decision("retry", self._delay_s(deliveries, random))

    def _delay_s(self, deliveries: int, random: Random) -> float:
        # Past 1,000 doublings a float is no more; any maximum is reached long before.
        grown = self.backoff_s * self.backoff_factor ** min(max(deliveries, 1) - 1, 100)
        return min(grown, self.max_backoff_s) * (1 - self.jitter * random.random())


def too_many_stuck(plan: "WorkerPlan") -> ClientError:
    return ClientError(f"{STUCK_MAX} handlers of {plan.group!r} hang in threads: restart the process")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    """A handler, and what it is for."""

    topics: tuple[str, ...]
    group: str
    handler: Callable[..., object]
    concurrency: int
    credit: Credit
    policy: WorkerPolicy
    standby: bool = False
    timeout_s: float | None = None
    """How long a handler may take; None: as long as it likes."""

    def late(self) -> TimeoutError:
        """What is the matter with a job whose handler took longer."""
        goes_on = "" if inspect.iscoroutinefunction(self.handler) else "; its thread goes on"
        return TimeoutError(f"the handler was not done within {self.timeout_s:g} s{goes_on}")


def plan_worker(
    topics: tuple[str, ...],
    group: str,
    handler: Callable[..., object],
    *,
    concurrency: int,
    prefetch: int | None,
    policy: WorkerPolicy,
    standby: bool,
    timeout: Seconds | None = None,
) -> WorkerPlan:
    """By default with a job in reserve for each that is worked on: the next one is there when a handler is done, and
    little is kept from other workers. Without, in a queue for one consumer: it would overtake one that fails."""
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: expected at least 1")
    timeout_s = None if timeout is None else as_seconds(timeout)
    if timeout_s is not None and not 0 < timeout_s <= TIMEOUT_SECONDS_MAX:
        raise ValueError(f"timeout={timeout!r}: expected more than 0 seconds, at most a year, or None")
    credit = Credit(2 * concurrency, concurrency)
    if prefetch is not None:
        credit = Credit(max(concurrency, prefetch), max(concurrency, prefetch))
    return WorkerPlan(
        topics=topics,
        group=group,
        handler=handler,
        concurrency=concurrency,
        credit=credit,
        policy=policy,
        standby=standby,
        timeout_s=timeout_s,
    )
