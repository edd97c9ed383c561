"""How workers settle a job when its handler has ended, the same in threads and in tasks."""

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final, NamedTuple, Protocol, TypedDict

from penstock.client.arguments import RETRY_SECONDS_MAX, Seconds, as_seconds, retry_seconds
from penstock.client.calls import reply_to
from penstock.client.error_texts import error_text, error_type, is_told_whole
from penstock.client.errors import ClientError
from penstock.client.publishing import OutgoingMessage
from penstock.client.queue_session import Credit, SettleAction

log = logging.getLogger("penstock.client.workers")

STUCK_MAX: Final = 100
"""Handlers of one worker that hang in threads, which cannot be interrupted. Another thread has replaced each of them;
more of them would sooner or later take all memory. So the worker ends, and the process manager should restart it."""
TIMEOUT_SECONDS_MAX: Final = 365 * 24 * 3600.0
"""Far below the longest time that a thread can wait."""


class Retry(Exception):
    """Raise it in a handler: the job comes again after so many seconds (None: after the worker's backoff), clipped to 0
    to seven days. It counts as an attempt: past max_attempts the job is rejected."""

    def __init__(self, message: str = "", *, delay: Seconds | None = None) -> None:
        if isinstance(message, (int, float, timedelta)):
            raise TypeError(f"Retry({message!r}): expected a message; use Retry(delay={message!r})")
        if delay is not None:
            as_seconds("delay", delay)
        super().__init__(message)
        self.delay = delay


class Reject(Exception):
    """Raise it in a handler: the job can never be done and goes to the dead-letter topic at once."""


class Decision(NamedTuple):
    action: SettleAction
    delay_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPolicy:
    """How often, and how soon, a job is retried."""

    max_attempts: int | None = None
    """None: up to the queue's own limit (share.delivery.count.limit, 5 by default)."""
    backoff_s: float = 1.0
    """The delay after the first attempt; `backoff_factor` times as long after each further one."""
    backoff_factor: float = 2.0
    max_backoff_s: float = 300.0
    jitter: float = 0.2
    """The largest part of a delay that is cut off at random, so that jobs that failed together do not come together."""

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts}: expected at least 1, or None")
        if not (
            self.backoff_s >= 0
            and self.max_backoff_s >= 0
            and self.backoff_factor >= 1
            and 0 <= self.jitter <= 1
        ):
            raise ValueError(
                f"{self}: expected times of at least 0, a factor of at least 1 and a jitter of 0 to 1"
            )

    def decide(self, deliveries: int, problem: BaseException | None, random: Random) -> Decision:
        """The action for a job after attempt number `deliveries`."""
        if problem is None:
            return Decision("accept")
        if self.gives_up(deliveries, problem):
            return Decision("reject")
        if isinstance(problem, Retry) and problem.delay is not None:
            with suppress(TypeError, ValueError):  # checked when it was made, but a subclass may change it
                return Decision("retry", retry_seconds(problem.delay))
        return Decision("retry", self._delay_s(deliveries, random))

    def gives_up(self, deliveries: int, problem: BaseException) -> bool:
        """Whether a job that has failed with this is not tried again."""
        is_last = self.max_attempts is not None and deliveries >= self.max_attempts
        return is_last or isinstance(problem, Reject)

    def _delay_s(self, deliveries: int, random: Random) -> float:
        longest_s = min(self.max_backoff_s, RETRY_SECONDS_MAX)
        try:
            grown = self.backoff_s * float(self.backoff_factor) ** (max(deliveries, 1) - 1)
        except OverflowError:  # longer than any maximum
            grown = longest_s if self.backoff_s else 0.0
        return min(grown, longest_s) * (1 - self.jitter * random.random())


class WorkerJob(Protocol):
    """A job of threads or of tasks."""

    deliveries: int

    def header(self, name: str) -> bytes | None: ...
    @property
    def action(self) -> SettleAction | None: ...
    @property
    def settled(self) -> bool: ...
    def ack(self) -> object: ...
    @property
    def is_last_delivery(self) -> bool: ...
    def retry(self, delay: Seconds | None = None, *, error: BaseException | str | None = None) -> object: ...
    def reject(self, *, error: BaseException | str | None = None) -> object: ...


def conclude(job: WorkerJob, problem: Exception | None, policy: WorkerPolicy, random: Random) -> None:
    """Settles a job whose handler has ended, unless the handler has settled it."""
    if job.settled:
        return
    decision = policy.decide(job.deliveries, problem, random)
    if problem is not None:
        _log_failure(job, problem, decision)
    match decision.action:
        case "accept":
            job.ack()
        case "reject":
            job.reject(error=problem)
        case _:
            job.retry(delay=decision.delay_s, error=problem)


def reply_of(
    job: WorkerJob, result: object, problem: Exception | None, policy: WorkerPolicy
) -> OutgoingMessage | None:
    """The reply to a call, once its outcome is final: before the job is acked, because a worker that dies in between
    must rather reply twice than never."""
    is_final = job.is_last_delivery or problem is None or policy.gives_up(job.deliveries, problem)
    if not is_final:
        return None
    if job.action == "retry":
        return None
    if job.action == "reject":
        problem = problem or Reject("the handler rejected the job")
    return reply_to(job, result, problem)


def _log_failure(job: WorkerJob, problem: Exception, decision: Decision) -> None:
    """One line; with a traceback only for errors that were not raised on purpose. A traceback repeats the error's
    text, so an error of 10 MB, or one that a log file cannot encode, has none."""
    then = f"again in {decision.delay_s or 0:.1f} s"
    if decision.action == "reject":
        then = "rejected"
    elif job.is_last_delivery:
        then = "the queue's delivery limit is reached: to the dead letters"
    has_trace = problem.__traceback__ is not None or problem.__cause__ is not None
    is_planned = isinstance(problem, (Retry, Reject)) or not has_trace
    log.warning(
        "%r, attempt %d: %s: %s; %s",
        job,
        job.deliveries,
        error_type(problem),
        error_text(problem),
        then,
        exc_info=problem if not is_planned and is_told_whole(problem) else None,
    )


def too_many_stuck(plan: "WorkerPlan") -> ClientError:
    return ClientError(f"{STUCK_MAX} handlers of {plan.group!r} hang in threads: restart the process")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    """A handler, and the queue that it works on."""

    topics: tuple[str, ...]
    group: str
    handler: Callable[..., object]
    concurrency: int
    credit: Credit
    policy: WorkerPolicy
    standby: bool = False
    timeout_s: float | None = None
    """How long a handler may take; None: no limit."""

    def timeout_error(self) -> TimeoutError:
        """The error of a job whose handler took longer."""
        goes_on = "" if is_coroutine_function(self.handler) else "; its thread goes on"
        return TimeoutError(f"the handler was not done within {self.timeout_s:g} s{goes_on}")


class WorkerOptions(TypedDict, total=False):
    """The options of a worker, as `every` and `cron` pass them to `worker`, which explains them."""

    concurrency: int
    max_attempts: int | None
    backoff: Seconds
    backoff_factor: float
    max_backoff: Seconds
    jitter: float
    prefetch: int | None
    timeout: Seconds | None


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
    may_await: bool = False,
) -> WorkerPlan:
    """By default a worker fetches one job ahead for each running handler: the next one is there when a handler ends,
    and few jobs are kept from other workers. In an exclusive queue it fetches none ahead: it could overtake a job that
    fails."""
    _check_handler(handler, may_await)
    if concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: expected at least 1")
    timeout_s = None if timeout is None else as_seconds("timeout", timeout)
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


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Also for callable objects and functools.partial."""
    return any(inspect.iscoroutinefunction(one) for one in _bodies(handler))


def discarded(result: object) -> TypeError | None:
    """An error if the handler returned a coroutine or generator, of which nothing has run. Closes it."""
    if isinstance(result, Coroutine):
        result.close()
        return TypeError(f"the handler returned a coroutine, which Client does not await: {USE_ASYNC}")
    if inspect.isawaitable(result):
        return TypeError(f"the handler returned {result!r}, which Client does not await: {USE_ASYNC}")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return TypeError("the handler returned a generator, of which nothing has run: it must not yield")
    return None


USE_ASYNC: Final = "use penstock.client.AsyncClient for coroutines"


def _bodies(handler: Callable[..., object]) -> tuple[Callable[..., object], ...]:
    """The function that runs when it is called: itself, or its `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler, type(handler).__call__


def _check_handler(handler: Callable[..., object], may_await: bool) -> None:
    """TypeError for a handler that would never run although its jobs would be acked."""
    if not callable(handler):
        raise TypeError(f"{handler!r} is not a handler: expected a function that takes a job")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _bodies(handler)):
        raise TypeError(f"{handler!r} is a generator function, of which nothing would run: it must not yield")
    if not may_await and is_coroutine_function(handler):
        raise TypeError(f"{handler!r} is a coroutine function, which Client cannot await: {USE_ASYNC}")
