"""Reports of a worker process to its supervisor: lines of JSON through a pipe."""

from typing import Any

import msgspec

from penstock.client.worker_counts import WorkerCounts


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`workers` comes with the first report, when the application is loaded."""

    counts: WorkerCounts
    workers: list[dict[str, Any]] | None = None


def encode(report: Report) -> bytes:
    return msgspec.json.encode(report) + b"\n"


def decode(line: bytes) -> Report:
    return msgspec.json.decode(line, type=Report)
