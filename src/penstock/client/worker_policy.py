"""How workers settle a job when its handler has ended, the same in threads and in tasks."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol, TypedDict

from penstock.client.arguments import Seconds, as_seconds
from penstock.client.calls import reply_to
from penstock.client.error_texts import error_text, error_type, is_told_whole
from penstock.client.errors import ClientError
from penstock.client.handler_checks import check_handler, is_coroutine_function
from penstock.client.publishing import OutgoingMessage
from penstock.client.queue_session import Credit, SettleAction
from penstock.client.retry_policy import Decision, Reject, Retry, WorkerPolicy

log = logging.getLogger("penstock.client.workers")

STUCK_MAX: Final = 100
"""Handlers of one worker that hang in threads, which cannot be interrupted. Another thread has replaced each of them;
more of them would sooner or later take all memory. So the worker ends, and the process manager should restart it."""
TIMEOUT_SECONDS_MAX: Final = 365 * 24 * 3600.0
"""Far below the longest time that a thread can wait."""


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
    check_handler(handler, may_await)
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
