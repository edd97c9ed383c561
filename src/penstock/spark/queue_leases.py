"""The leases of a micro-batch's jobs, kept while Spark works on it.

The process that plans a stream waits for Spark's next question, so a thread renews the leases, three times in each of
them. A lease that is over all the same is told in the log; its job is delivered again, to this stream or to another
consumer.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock.client import ClientError
from penstock.client.jobs_over_http import JobClient

log = logging.getLogger("penstock.spark")

RENEWALS_PER_LEASE: Final = 3
MIN_PERIOD_S: Final = 0.05


class Leases:
    """`connect` makes a client for the thread, since clients are for one thread each."""

    def __init__(self, connect: Callable[[], JobClient]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._receipts: tuple[str, ...] = ()
        self._lease_ms = 0
        self._change = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def held(self) -> tuple[str, ...]:
        with self._lock:
            return self._receipts

    def hold(self, receipts: Sequence[str], lease_ms: int) -> None:
        """Keeps these leases, and no others."""
        with self._lock:
            self._receipts, self._lease_ms = tuple(receipts), lease_ms
            if receipts and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-leases", daemon=True)
                self._thread.start()
        self._change.set()

    def drop(self) -> None:
        self.hold((), 0)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._change.set()

    def _run(self) -> None:
        client = self._connect()
        while not self._is_closed:
            with self._lock:
                self._change.clear()
                receipts, lease_ms = self._receipts, self._lease_ms
            period_s = max(MIN_PERIOD_S, lease_ms / 1000 / RENEWALS_PER_LEASE) if receipts else None
            if self._change.wait(period_s) or not receipts:
                continue
            self._renew(client, receipts)

    def _renew(self, client: JobClient, receipts: tuple[str, ...]) -> None:
        try:
            over = set(client.renew(receipts))
        except ClientError as problem:
            log.warning("leases of %d jobs are not renewed: %s", len(receipts), problem)
            return
        if over:
            log.warning("the leases of %d jobs are over: they will be delivered again", len(over))
            with self._lock:
                self._receipts = tuple(one for one in self._receipts if one not in over)
