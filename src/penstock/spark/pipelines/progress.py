"""The progress of a stream, batch by batch, in a few figures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchProgress:
    batch_id: int
    at: str
    """When it began, in UTC, as Spark writes it."""
    rows: int
    rows_per_second: float
    duration_ms: int
    lag: int | None
    """Records that were there when the batch was planned and that it left for later; None if unknown."""
    late_rows: int = 0
    """Rows that came after the watermark and were left out."""
    steps_ms: Mapping[str, int]
    """Where the time went, by Spark's names: addBatch, walCommit, ..."""


def from_spark(progress: Mapping[str, Any]) -> BatchProgress:
    """Reads the JSON of Spark's StreamingQueryProgress."""
    steps = {name: int(value) for name, value in (progress.get("durationMs") or {}).items()}
    duration_ms = steps.pop("triggerExecution", 0)
    rows = int(progress.get("numInputRows") or 0)
    operators = progress.get("stateOperators") or []
    return BatchProgress(
        batch_id=int(progress["batchId"]),
        at=str(progress.get("timestamp", "")),
        rows=rows,
        rows_per_second=rows * 1000 / duration_ms if duration_ms else 0.0,
        duration_ms=duration_ms,
        lag=_lag(progress.get("sources") or []),
        late_rows=sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators),
        steps_ms=steps,
    )


def _lag(sources: list[Mapping[str, Any]]) -> int | None:
    lags = [
        _behind(_place(source.get("endOffset")), _place(source.get("latestOffset"))) for source in sources
    ]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _behind(reached: Mapping[tuple[str, str], int], latest: Mapping[tuple[str, str], int]) -> int | None:
    if not latest:
        return None
    return sum(max(0, offset - reached.get(tp, 0)) for tp, offset in latest.items())


def _place(offset: object) -> dict[tuple[str, str], int]:
    """A stream's place by topic and partition. Spark gives it as text or as an object."""
    value = json.loads(offset) if isinstance(offset, str) and offset.startswith("{") else offset
    topics = value.get("topics") if isinstance(value, dict) else None
    if not isinstance(topics, dict):
        return {}
    return {(topic, number): at for topic, numbers in topics.items() for number, at in numbers.items()}
