"""The archive: its tables by topic, and what all of them say together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.spark.lake.iceberg_catalog import has_own_catalog, iceberg_format
from penstock.spark.lake.storage import storage_at
from penstock.spark.problems import ArchiveError, PipelineError
from penstock.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.lake.delta_table import DeltaTopicTable
    from penstock.spark.lake.topic_table import TableFormat, TopicTable

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (DELTA, ICEBERG)
LOG_FOLDER: Final = "_delta_log"
"""Which every Delta table has."""
OLD_LOG: Final = "_penstock/log"
"""Where archives had their log before they were Delta tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicFacts:
    topic_id: str
    """A topic that was deleted and created again has another."""
    partitions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveState:
    """How far an archive goes."""

    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The next offset of each partition that is not archived."""

    def partitions_of(self, topic: str) -> int:
        """How many the topic had when it was last looked at."""
        facts = self.topics.get(topic)
        return facts.partitions if facts else 0


class Lake:
    """All tables of an archive have one format. `table_format` is for those that are made: by default that of the
    tables that are there, and else Delta. `catalog` is of Iceberg tables, where it is not in the archive's folder."""

    def __init__(self, path: str, *, table_format: str | None = None, catalog: str | None = None) -> None:
        self.storage = storage_at(path)
        if self.storage.is_local and self.storage.has(OLD_LOG):
            raise ArchiveError(
                f"{path} is an archive of the format before Delta tables. This converts it: "
                f"`penstock pipeline convert {path}`"
            )
        self.format_name = self._format(table_format, catalog)
        """The name of the tables' format."""
        self._tables: TableFormat = (
            iceberg_format(self.storage, catalog) if self.format_name == ICEBERG else delta_format()
        )

    def table(self, topic: str) -> "TopicTable | None":
        """A snapshot of now. ArchiveError if the table is not of an archive."""
        found = self._tables.open(self.storage.below(topic))
        if found is not None and not found.is_archive:
            raise ArchiveError(f"{found.folder} is a table that no archive has made: archive to another path")
        return found

    def tables(self, topics: Iterable[str] | None = None) -> "dict[str, TopicTable]":
        """Snapshots of now, by default of all topics; those that have no table are left out."""
        if topics is None:
            found = {name: self._tables.open(self.storage.below(name)) for name in self.storage.names()}
            return {name: table for name, table in found.items() if table is not None and table.is_archive}
        chosen = {name: self.table(name) for name in topics}
        return {name: table for name, table in chosen.items() if table is not None}

    def create(
        self,
        topic: str,
        schema: "pa.Schema",
        facts: TopicFacts,
        positions: Mapping[int, int],
        properties: Mapping[str, str],
    ) -> "TopicTable":
        """`positions` says where partitions begin that do not at their first record: what is before is not wanted."""
        self.table(topic)
        if self.format_name == ICEBERG and self.storage.below(topic).has(LOG_FOLDER):
            raise ArchiveError(f"{self.storage.below(topic).url} is a Delta table: archive to another path")
        return self._tables.create(
            self.storage.below(topic),
            schema,
            topic_id=facts.topic_id,
            partitions=facts.partitions,
            positions=positions,
            properties=properties,
        )

    def _format(self, wanted: str | None, catalog: str | None) -> str:
        if wanted not in (None, *FORMATS):
            raise ConfigError("table_format", wanted, f"one of {', '.join(FORMATS)}")
        there = ICEBERG if catalog is not None or has_own_catalog(self.storage) else None
        if there and wanted not in (None, there):
            raise ConfigError("table_format", wanted, f"{there}, which the tables of {self.storage.url} have")
        return wanted or there or DELTA


def known_tables(path: str, catalog: str | None = None) -> "dict[str, TopicTable]":
    """ConfigError if there are none."""
    tables = Lake(path, catalog=catalog).tables()
    if not tables:
        raise ConfigError(
            "path", path, "an archive. `penstock pipeline run archive TOPIC --to PATH` makes one"
        )
    return tables


def state_of(tables: "Mapping[str, TopicTable]") -> ArchiveState:
    return ArchiveState(
        topics={
            topic: TopicFacts(topic_id=table.topic_id, partitions=table.partitions)
            for topic, table in tables.items()
        },
        positions={
            TopicPartition(topic, number): offset
            for topic, table in tables.items()
            for number, offset in table.positions.items()
        },
    )


def delta_format() -> "type[DeltaTopicTable]":
    """PipelineError where deltalake is not installed. Pipelines that need no table work without it."""
    try:
        from penstock.spark.lake.delta_table import DeltaTopicTable
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != "deltalake":
            raise
        raise PipelineError(
            'an archive consists of Delta tables, and deltalake is not installed: pip install "penstock[lake]"'
        ) from None
    return DeltaTopicTable
