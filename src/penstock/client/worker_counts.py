"""How many jobs the workers of a client have done."""

import threading

import msgspec

from penstock.client.queue_session import SettleAction


class WorkerCounts(msgspec.Struct, frozen=True, kw_only=True):
    running: int = 0
    """Handlers that run now."""
    done: int = 0
    retried: int = 0
    """Attempts that failed, and whose jobs come again."""
    rejected: int = 0

    def plus(self, other: "WorkerCounts") -> "WorkerCounts":
        names = self.__struct_fields__
        return WorkerCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def without_running(self) -> "WorkerCounts":
        return msgspec.structs.replace(self, running=0)


class JobCounter:
    """Shared by all workers of a client, in threads or in tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._ended: dict[SettleAction | None, int] = {}

    def begin(self) -> None:
        with self._lock:
            self._running += 1

    def end(self, action: SettleAction | None) -> None:
        """`action`: how the job was settled; None if it was not."""
        with self._lock:
            self._running -= 1
            self._ended[action] = self._ended.get(action, 0) + 1

    def counts(self) -> WorkerCounts:
        with self._lock:
            return WorkerCounts(
                running=self._running,
                done=self._ended.get("accept", 0),
                retried=self._ended.get("retry", 0),
                rejected=self._ended.get("reject", 0),
            )
