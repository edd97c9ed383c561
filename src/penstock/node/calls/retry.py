"""The one retry policy for requests to other nodes.

A request is sent again when the answer says that another node should have been asked, or that the right node needs a
moment; never because of a mistake in the request. Two things decide whether it may be sent again:

1. Was it surely not executed (NotExecuted: the target is unknown, not connected, or refused before it did anything)?
   Then any request may be sent again.
2. Otherwise it may have been executed: the connection broke, no answer came in time, or a leader lost its role while
   it was waiting for its followers. Then only a method that may be repeated is sent again (`Method.repeatable`).

Roles move when a leader is elected, which takes up to 3 s with the default settings. So a request looks for its target
for 10 s (`RETRY_SECONDS`). Between two attempts it waits until the target is known to be another node, at most for a
delay that doubles from 20 ms to 200 ms.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import ErrorCode, KafkaError, NotExecuted, Unanswered

RETRY_SECONDS = 10.0
FIRST_DELAY_SECONDS = 0.02
LONGEST_DELAY_SECONDS = 0.2
POLL_PAUSE_SECONDS = 1.0
"""Between two requests that are sent in place of a long poll that may not wait at the node that it asks (`remote`).
There may be thousands of such polls."""

NO_COORDINATOR = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of a node that does not coordinate, or not yet."""

NO_COORDINATOR_ANSWER = NO_COORDINATOR | frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors of a question to a coordinator that it has not answered. A client whose request led to that question would
take them for errors of the node that it asked itself, and would look for another one."""

TRANSIENT = NO_COORDINATOR | frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors that pass when an election is over, or when the node has loaded its state."""

UNKNOWN_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors that pass when the node has applied the metadata that the asking node has applied already."""


def is_retryable(code: int, *, knows_topics: bool = False) -> bool:
    """Whether the same request may get another answer a moment later; any other error is final. `knows_topics`: the
    answer comes from a place that knows all topics, so that an unknown topic is final."""
    return code in TRANSIENT or (code in UNKNOWN_TOPIC and not knows_topics)


def may_repeat(problem: KafkaError, *, repeatable: bool, knows_topics: bool = False) -> bool:
    """Whether a request that failed like this is to be sent again; `repeatable`: it may be executed twice."""
    if not is_retryable(problem.code, knows_topics=knows_topics):
        return False
    if isinstance(problem, NotExecuted):
        return True
    if isinstance(problem, Unanswered):
        return repeatable or not problem.may_be_done
    return repeatable


class ClusterChanges(asyncio.Event):
    """Fired when this node has learned of a leader or applied metadata: a role may have moved."""

    def fire(self) -> None:
        """Wakes all that wait now."""
        self.set()
        self.clear()


class CallRetry:
    """The attempts of one request."""

    def __init__(self, changed: ClusterChanges) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + RETRY_SECONDS
        self._delay = FIRST_DELAY_SECONDS

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._deadline

    async def pause(self, is_moved: Callable[[], bool] | None = None) -> None:
        """Returns when the target has moved, or after the next delay."""
        delay, self._delay = self._delay, min(2 * self._delay, LONGEST_DELAY_SECONDS)
        if is_moved is None:
            await asyncio.sleep(delay)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                while not is_moved():
                    await self._changed.wait()
