"""Which records of an archive are wanted, by time and by offset; whole files are left out by their statistics."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TableFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which records are wanted: all that all of these allow."""

    from_time: datetime | None = None
    to_time: datetime | None = None
    """Records before it."""
    from_offset: int | None = None
    to_offset: int | None = None
    """Records before it."""

    def validate(self) -> None:
        for name, moment in (("from_time", self.from_time), ("to_time", self.to_time)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigError(name, moment, "a time with a time zone, such as 2026-01-31T08:00:00Z")
        if self.from_time is not None and self.to_time is not None and self.from_time >= self.to_time:
            raise ConfigError("to_time", self.to_time, f"a time after from_time, which is {self.from_time}")
        if self.from_offset is not None and self.to_offset is not None and self.from_offset >= self.to_offset:
            raise ConfigError(
                "to_offset", self.to_offset, f"more than from_offset, which is {self.from_offset}"
            )

    def applied(self, rows: DataFrame) -> DataFrame:
        if self.from_time is not None:
            rows = rows.where(F.col("timestamp") >= F.lit(self.from_time))
        if self.to_time is not None:
            rows = rows.where(F.col("timestamp") < F.lit(self.to_time))
        if self.from_offset is not None:
            rows = rows.where(F.col("offset") >= self.from_offset)
        if self.to_offset is not None:
            rows = rows.where(F.col("offset") < self.to_offset)
        return rows

    def holding(self, files: Iterable["TableFile"]) -> list["TableFile"]:
        """Files that can have a wanted record."""
        return [file for file in files if self._may_hold(file)]

    def _may_hold(self, file: "TableFile") -> bool:
        if file.offsets is not None:
            first, last = file.offsets
            if self.from_offset is not None and last < self.from_offset:
                return False
            if self.to_offset is not None and first >= self.to_offset:
                return False
        if file.times is not None:
            earliest, latest = file.times
            if self.from_time is not None and latest < self.from_time:
                return False
            if self.to_time is not None and earliest >= self.to_time:
                return False
        return True


EVERYTHING: Final = Selection()
