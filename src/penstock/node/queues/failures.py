"""Why messages of a queue failed: kept for their dead letters.

A consumer that retries or rejects a message may say why. The leader keeps the last reason, the consumer, and the times
of the first and the last failure of each message, until the message is done. They are in memory only: after a leader
change they begin again. Kafka's ShareAcknowledge cannot say why, so for its consumers there are names and times only.

Bounded: MAX_FAILURES messages, the oldest are forgotten first; texts are cut.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.queue.values import AckKind, Acknowledgement

MAX_FAILURES = 5_000
"""For each queue and partition."""
MAX_TYPE = 200
MAX_TEXT = 1_000
"""Characters: enough for a message, too little for a traceback."""
MAX_NAMES = 100
"""Consumers that have gone, whose names are still known."""

FAILED = frozenset({AckKind.RELEASE, AckKind.REJECT})


class Failure(NamedTuple):
    """A consumer's reason."""

    error_type: str
    error_text: str

    def cut(self) -> "Failure":
        return Failure(self.error_type[:MAX_TYPE], self.error_text[:MAX_TEXT])


Failures = Mapping[int, Failure]
"""By offset."""
NO_FAILURES: Failures = MappingProxyType({})


class FailureHistory(NamedTuple):
    """The failures of one message."""

    first_ms: int
    last_ms: int
    worker: str
    failure: Failure | None
    """The last one that a consumer explained."""


class FailureLog:
    """The failures of one queue on one partition. Time is the caller's."""

    def __init__(self, connected_name: Callable[[str], str | None]) -> None:
        """`connected_name`: the name of a consumer that is connected."""
        self._connected_name = connected_name
        self._histories: dict[int, FailureHistory] = {}
        self._gone: dict[str, str] = {}
        """The names of consumers that have disconnected, by member."""

    def get(self, offset: int) -> FailureHistory | None:
        return self._histories.get(offset)

    def settled(
        self, now_ms: int, member: str, batches: Iterable[Acknowledgement], failures: Failures
    ) -> None:
        """A consumer has settled ranges."""
        for batch in batches:
            kinds = batch.kinds
            if len(kinds) > 1 or kinds[0] in FAILED:
                self._settled(now_ms, member, batch, failures)
            elif self._histories and kinds[0] != AckKind.RENEW:
                self.forget(batch.first, batch.last)

    def _settled(self, now_ms: int, member: str, batch: Acknowledgement, failures: Failures) -> None:
        kinds, worker = batch.kinds, self.name_of(member)
        for offset in range(batch.first, batch.last + 1)[:MAX_FAILURES]:
            if kinds[0 if len(kinds) == 1 else offset - batch.first] in FAILED:
                self._add(now_ms, offset, worker, failures.get(offset))

    def _add(self, now_ms: int, offset: int, worker: str, failure: Failure | None) -> None:
        known = self._histories.pop(offset, None)
        first_ms = now_ms if known is None else known.first_ms
        last = failure.cut() if failure is not None else known and known.failure
        self._histories[offset] = FailureHistory(first_ms, now_ms, worker, last)
        while len(self._histories) > MAX_FAILURES:
            del self._histories[next(iter(self._histories))]

    def forget(self, first: int, last: int) -> None:
        """These messages are done."""
        if not self._histories:
            return
        if last - first < len(self._histories):
            for offset in range(first, last + 1):
                self._histories.pop(offset, None)
        else:
            kept = {offset: one for offset, one in self._histories.items() if not first <= offset <= last}
            self._histories = kept

    # --- names

    def gone(self, member: str) -> None:
        """A consumer is about to disconnect; its messages may become dead letters only then."""
        self._gone[member] = self.name_of(member)
        while len(self._gone) > MAX_NAMES:
            del self._gone[next(iter(self._gone))]

    def name_of(self, member: str) -> str:
        """The name of a consumer, for people."""
        return self._connected_name(member) or self._gone.get(member, member)
