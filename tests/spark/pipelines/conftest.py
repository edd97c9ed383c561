"""A topic to archive, and the expected contents of its archive."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Broker
from penstock.spark import Archived, archive, read_archive
from penstock.spark.lake.delta_table import DeltaTopicTable
from penstock.spark.lake.folder import ArchiveState, Lake, state_of

EVENING_MS = 1_767_225_600_000 - 6_000
"""Six seconds before 2026 begins, in UTC: records that are a second apart come to lie on two dates."""


@dataclass(frozen=True)
class Shop:
    """A topic of three partitions, and an archive of it."""

    spark: SparkSession
    bootstrap_servers: str
    topic: str
    path: str
    produce: Callable[..., None]

    def sell(self, first: int, count: int) -> None:
        """Records `first` to `first + count - 1`, spread over the partitions, a second apart."""
        self.produce(self.topic, [record(number) for number in range(first, first + count)])

    def archive(self, **settings: Any) -> Archived:
        return archive(
            self.spark, self.topic, self.path, bootstrap_servers=self.bootstrap_servers, **settings
        )

    def archived(self) -> DataFrame:
        return read_archive(self.spark, self.path)

    def table(self) -> DeltaTopicTable:
        table = Lake(self.path).table(self.topic)
        assert isinstance(table, DeltaTopicTable)
        return table

    def state(self) -> ArchiveState:
        return state_of(Lake(self.path).tables())

    def committed_files(self) -> set[str]:
        return {file.path for file in self.table().files()}

    def data_files(self) -> set[str]:
        """All Parquet files below the table's folder, as a reader sees them that does not know Delta."""
        return {str(file) for file in Path(self.path, self.topic).glob("date=*/*.parquet")}


def record(number: int) -> dict[str, Any]:
    return {
        "key": None if number % 5 == 0 else f"k{number % 4}",
        "value": None if number % 7 == 0 else f"v{number}",
        "partition": number % 3,
        "timestamp": EVENING_MS + number * 1000,
        "headers": [("n", str(number).encode()), ("empty", None)] if number % 2 else None,
    }


def topic_partitions(rows: DataFrame) -> list[tuple[int, int]]:
    """Partition and offset of each row, sorted: a row that is there twice is in it twice."""
    return sorted((row.partition, row.offset) for row in rows.select("partition", "offset").collect())


def all_places(count: int) -> list[tuple[int, int]]:
    """Partition and offset of the records 0 to count - 1, each once."""
    return sorted((number % 3, number // 3) for number in range(count))


def plain(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Rows in order of partition and offset, comparable."""
    chosen = columns or ("partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
    found = rows.orderBy("topic", "partition", "offset").select(*chosen).collect()
    return [tuple(row) for row in found]


def only(items: Iterable[Any]) -> Any:
    [item] = items
    return item


@pytest.fixture
def shop(
    spark: SparkSession,
    broker: Broker,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> Shop:
    return Shop(
        spark=spark,
        bootstrap_servers=broker.bootstrap_servers,
        topic=make_topic("shop", partitions=3),
        path=str(tmp_path / "an archive"),
        produce=produce,
    )
