"""How often, and how soon, a job or message whose handler has failed is tried again: the same for workers of queues and
for cliques."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import NamedTuple

from penstock.client.arguments import RETRY_SECONDS_MAX, Seconds, as_seconds, retry_seconds
from penstock.client.queue_session import SettleAction


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
