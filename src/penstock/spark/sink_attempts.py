"""Exactly-once writing: each attempt of a task writes as a producer that the coordinator has lent it, invisible to
readers of committed records, and the driver's commit names the attempts that count.

    streaming query            owner "spark-" + the query's id, version = number of the micro-batch
    txnAppId, txnVersion       owner = txnAppId and the topic, version = txnVersion

Both survive a restart of the driver, and a micro-batch that is replayed has the same version: if it was committed, its
tasks are told so and write nothing. All tasks of a job come to the same conclusion whether the brokers can do this.
"""

import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from penstock.client.attempts import AttemptClient, Version
from penstock.client.errors import ClientError
from penstock.client.wire.producer import TransactionIdentity
from penstock.errors import PenstockError
from penstock.spark.sink_options import SinkOptions

log = logging.getLogger("penstock.spark")

SIGNS_OF_LIFE: Final = 3
"""In each timeout, while a task sends rows."""
ROLLBACK_RETRY_MS: Final = 5_000
"""How long a failed job tries to end its attempts. If that fails, they are aborted when they time out."""

AT_LEAST_ONCE: Final = (
    "%s: this sink writes at least once: %s. Rows of tasks that are tried again, and of micro-batches that are "
    "replayed, are written again"
)
NEEDS: Final = (
    "to write exactly once, tasks must reach the brokers' HTTP ports, and their user needs WRITE on the transactional "
    "id: see docs/spark.md; exactlyOnce=false does without"
)
NOT_POSSIBLE: Final = "the brokers announce no HTTP port with attempts of transactions, which Penstock has"


class NotExactlyOnce(PenstockError):
    """`exactlyOnce=true`, and it is not possible."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The report of one attempt of a task about a version."""

    version: Version
    producer: TransactionIdentity | None
    """None: the version is committed already, and nothing was written."""
    urls: tuple[str, ...]
    """The brokers' HTTP addresses, so that the driver need not look for them."""


_possible: dict[tuple[object, ...], tuple[str, ...] | None] = {}
"""By process: the addresses of HTTP ports, or None if exactly-once writing is not possible."""


def begin(options: SinkOptions, version: Version) -> Attempt | None:
    """None: rows are written at least once. ClientError if the brokers cannot be asked."""
    if options.exactly_once == "false":
        return None
    try:
        return _lent(options, version)
    except ClientError as problem:
        problem.add_effort(NEEDS)
        raise


def _lent(options: SinkOptions, version: Version) -> Attempt | None:
    key = os.getpid(), options.client, options.http_urls, options.exactly_once
    if key not in _possible:
        _possible[key] = _find_out(options)
    urls = _possible[key]
    if urls is None:
        return None
    client = AttemptClient(options.client, urls, options.http_urls)
    producer = client.lend(version, options.transaction_timeout_ms)
    return Attempt(version=version, producer=producer, urls=client.urls)


def _find_out(options: SinkOptions) -> tuple[str, ...] | None:
    client = AttemptClient(options.client, named=options.http_urls)
    if client.is_possible():
        return client.urls
    if options.exactly_once == "true":
        raise NotExactlyOnce(f"exactlyOnce=true: {NOT_POSSIBLE}")
    log.warning(AT_LEAST_ONCE, options.client.bootstrap_servers, NOT_POSSIBLE)
    return None


class SignsOfLife:
    """Tells the coordinator that a task goes on, while it does."""

    def __init__(self, options: SinkOptions, attempt: Attempt) -> None:
        self._client = AttemptClient(options.client, attempt.urls, options.http_urls)
        self._owner = attempt.version.owner
        self._period_s = options.transaction_timeout_ms / 1000 / SIGNS_OF_LIFE
        self._last_s = time.monotonic()

    def rows_sent(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= self._period_s:
            self._client.renew(self._owner)
            self._last_s = now_s


def commit(options: SinkOptions, attempts: Iterable[Attempt]) -> None:
    """The driver's decision; may be repeated. ClientError: nothing is committed, or it is not known."""
    for version, mine in _by_version(attempts).items():
        client = AttemptClient(options.client, mine[0].urls, options.http_urls)
        client.commit(version, [one.producer for one in mine if one.producer is not None])


def roll_back(options: SinkOptions, attempts: Iterable[Attempt]) -> None:
    """The job has failed. Readers of committed records need not wait for the timeout."""
    brief = replace(options.client, retry_for_ms=min(options.client.retry_for_ms, ROLLBACK_RETRY_MS))
    for version, mine in _by_version(attempts).items():
        with suppress(ClientError):
            AttemptClient(brief, mine[0].urls, options.http_urls).rollback(version)


def _by_version(attempts: Iterable[Attempt]) -> dict[Version, Sequence[Attempt]]:
    """There is one, or none if no task had any rows."""
    found: dict[Version, list[Attempt]] = {}
    for one in attempts:
        found.setdefault(one.version, []).append(one)
    assert len(found) <= 1, "the tasks of a job write one version"
    return dict(found)
