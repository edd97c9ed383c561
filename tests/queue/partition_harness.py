"""A queue partition with its clock and its state topic."""

from penstock.errors import ErrorCode
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings
from penstock.queue.states import AVAILABLE, DEFERRED, DYING, LEASED, REJECTED, WAITING
from penstock.queue.values import AckKind, AckResult, ScanResult
from penstock.types import Term

ACCEPT = bytes((AckKind.ACCEPT,))
RELEASE = bytes((AckKind.RELEASE,))
REJECT = bytes((AckKind.REJECT,))
RENEW = bytes((AckKind.RENEW,))
TAKEN = AckResult(ErrorCode.NONE, True)
NOT_YOURS = AckResult(ErrorCode.INVALID_RECORD_STATE, False)


class PartitionHarness:
    """Starts with `messages` read from the log."""

    def __init__(self, messages: int = 0, *, start: int = 0, **settings: object) -> None:
        self.settings = QueueSettings(**settings)  # type: ignore[arg-type]
        self.now_ms = 1_000_000
        self.term = 1
        self.queue = QueuePartition(self.settings, term=Term(1), start_offset=start)
        self.stored: dict[bytes, bytes] = {}
        self.keys: dict[int, int | None] = {}
        """The keys in the log, for key-ordered queues."""
        if messages:
            self.reads(messages)

    def reads(self, count: int, **scan: object) -> None:
        first = self.queue.next_offset
        self.queue.extend(self.now_ms, first + count, ScanResult(**scan))  # type: ignore[arg-type]

    def reads_keys(self, *keys: int | None) -> None:
        self.reads(len(keys), keys=keys)

    def passes(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.queue.tick(self.now_ms)

    def gets(self, member: str, count: int = 1) -> list[int]:
        """The offsets that are delivered to a member."""
        acquired = self.queue.acquire(self.now_ms, member, count)
        return [offset for each in acquired for offset in range(each.first, each.last + 1)]

    def says(
        self,
        member: str,
        kinds: bytes,
        first: int,
        last: int | None = None,
        *,
        delay_ms: int | None = None,
        token: object = None,
    ) -> AckResult:
        last = first if last is None else last
        return self.queue.acknowledge(self.now_ms, member, first, last, kinds, delay_ms=delay_ms, token=token)

    def writes(self) -> int | None:
        """One write: it is in the state topic, but has not been confirmed yet."""
        changes = self.queue.take_changes()
        if changes is None:
            return None
        for key, value in changes.records:
            self.stored.pop(key, None)
            if value is not None:
                self.stored[key] = value
        return changes.number

    def saves(self) -> list[object]:
        """Saves everything; returns the confirmed tokens."""
        tokens: list[object] = []
        while (number := self.writes()) is not None:
            tokens += self.queue.saved(number)
        return tokens

    def crashes(self, **settings: object) -> None:
        """Another leader restores the partition from the stored state."""
        self.term += 1
        if settings:
            self.settings = QueueSettings(**settings)  # type: ignore[arg-type]
        term = Term(self.term)
        self.queue = QueuePartition.restore(self.settings, term=term, records=self.stored)

    def check_counters(self) -> None:
        """[6]"""
        table = self.queue._table
        for state in (AVAILABLE, LEASED, DEFERRED, WAITING, DYING, REJECTED):
            assert table.counts[state] == sum(each.state.count(state) for each in table.chunks.values())
