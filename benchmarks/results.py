"""The results of a comparison, as they are written to JSON."""

from collections.abc import Sequence
from statistics import median
from typing import Self

import msgspec

from penstock.cli.bench.figures import Latency, Run


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    partitions: int
    size_bytes: int
    compression: str
    acks: str

    @property
    def label(self) -> str:
        plural = "" if self.partitions == 1 else "s"
        return (
            f"{self.partitions} partition{plural}, {self.size_bytes} B, {self.compression}, acks={self.acks}"
        )


def _median_rate(runs: Sequence[Run], target: str, kind: str) -> float:
    return median(run.messages_per_second for run in runs if (run.target, run.kind) == (target, kind))


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """Messages per second, producing and consuming, of both brokers."""

    cell: Cell
    produce: tuple[float, float]
    consume: tuple[float, float]

    @property
    def ratios(self) -> tuple[float, float]:
        return self.produce[0] / self.produce[1], self.consume[0] / self.consume[1]

    @classmethod
    def of(cls, cell: Cell, runs: Sequence[Run]) -> Self:
        produce, consume = (
            (_median_rate(runs, "penstock", kind), _median_rate(runs, "kafka", kind))
            for kind in ("produce", "consume")
        )
        return cls(cell=cell, produce=produce, consume=consume)


class LatencyResult(msgspec.Struct, frozen=True, kw_only=True):
    """At a steady rate: until acknowledged and until delivered, medians over the runs."""

    acks: str
    acknowledged: tuple[Latency, Latency]
    delivered: tuple[Latency, Latency]

    @classmethod
    def of(cls, acks: str, runs: Sequence[Run]) -> Self:
        acknowledged, delivered = (
            (_median_latency(runs, "penstock", of), _median_latency(runs, "kafka", of))
            for of in ("acknowledged", "delivered")
        )
        return cls(acks=acks, acknowledged=acknowledged, delivered=delivered)


def _median_latency(runs: Sequence[Run], target: str, of: str) -> Latency:
    """The median of each percentile by itself."""
    found: list[Latency] = [getattr(run, of) for run in runs if run.target == target]
    names = [field.name for field in msgspec.structs.fields(Latency)]
    return Latency(**{name: median(getattr(each, name) for each in found) for name in names})


class ScalingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Messages per second, and the broker's CPU per message in microseconds, of both brokers."""

    partitions: int
    messages_per_second: tuple[float, float]
    us_per_message: tuple[float, float]

    @classmethod
    def of(cls, partitions: int, runs: Sequence[Run]) -> Self:
        rates, costs = [], []
        for target in ("penstock", "kafka"):
            rates.append(_median_rate(runs, target, "produce"))
            costs.append(median(run.broker_us_per_message or 0.0 for run in runs if run.target == target))
        return cls(
            partitions=partitions,
            messages_per_second=(rates[0], rates[1]),
            us_per_message=(costs[0], costs[1]),
        )


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything; in pairs Penstock comes first."""

    machine: str
    penstock_version: str
    kafka_version: str
    rounds: int
    cells: list[CellResult]
    geometric_mean: float
    worst: float
    latencies: list[LatencyResult]
    flushes: Latency
    """Flushes of the disk alone."""
    start_seconds: list[float]
    idle_bytes: list[int]
    scaling: list[ScalingResult]
    log_gb: float
    log_us_per_message: list[float]
