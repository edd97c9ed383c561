"""The writer of an archive: Spark's tasks write files, the driver commits them to the topics' tables.

A writer that dies leaves this behind, by the time of its death:

    while tasks write, or before the commit      files that no commit names: they do not count, `vacuum` deletes them
    between the commits of two topics            the first topic has the batch, the second has not: both go on there
    after the commits, before Spark's own        the batch: Spark reads it again, and all of it is left out
"""

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.spark.lake.folder import ArchiveState, Lake, TopicFacts, state_of
from penstock.spark.lake.maintenance import Compaction, care_for
from penstock.spark.lake.parquet_files import REPORT_SCHEMA, RowsToFiles, WrittenFile
from penstock.spark.lake.record_columns import RECORD_SCHEMA
from penstock.spark.pipelines.table_columns import RAW, TableColumns, adapt
from penstock.types import TopicPartition

ARROW_BYTES = ("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
"""With Spark's default, a column of arrays takes time that grows with the square of a batch's rows."""


class ArchiveWriter:
    def __init__(self, lake: Lake, *, compression: str = "zstd") -> None:
        self.lake = lake
        self._compression = compression
        self._tables = lake.tables()
        self._topics: set[str] = set()

    @property
    def state(self) -> ArchiveState:
        return state_of(self._tables)

    def begin(
        self,
        topics: Mapping[str, TopicFacts],
        begins: Mapping[TopicPartition, int],
        columns: TableColumns = RAW,
    ) -> None:
        """Every topic has a table with these columns. `begins` says where new ones start, if not at their first
        record: what is before is not wanted."""
        self._topics.update(topics)
        for topic, facts in sorted(topics.items()):
            table = self._tables.get(topic)
            if table is None:
                positions = {tp.partition: offset for tp, offset in begins.items() if tp.topic == topic}
                self._create(topic, facts, positions, columns)
                continue
            adapt(table, columns)
            if facts.partitions > table.partitions:
                table.append([], partitions=facts.partitions)

    def write(self, rows: DataFrame, schema: pa.Schema = RECORD_SCHEMA) -> list[WrittenFile]:
        """Runs the tasks that write the rows. In a file the rows of a partition are in order of their offsets."""
        rows.sparkSession.conf.set(*ARROW_BYTES)
        ordered = rows.sortWithinPartitions("topic", "date", "partition", "offset")
        write = RowsToFiles(storage=self.lake.storage, schema=schema, compression=self._compression)
        found = ordered.mapInArrow(write, REPORT_SCHEMA).collect()
        return sorted(WrittenFile(**row.asDict()) for row in found)

    def commit(self, files: list[WrittenFile], *, note: str = "") -> None:
        """One commit for each topic. AnotherWriter if another run has moved the end of its archive meanwhile."""
        for topic in sorted({file.topic for file in files}):
            self._tables[topic].append([file for file in files if file.topic == topic], note=note)

    def optimize(self, compaction: Compaction) -> int:
        """Merges small files, and deletes those that were merged long ago, of the topics of this run: other runs care
        for theirs. Returns how many files fewer there are."""
        return sum(care_for(self._tables[topic], compaction) for topic in sorted(self._topics))

    def versions(self) -> dict[str, int]:
        return {topic: table.version for topic, table in self._tables.items()}

    def _create(
        self, topic: str, facts: TopicFacts, positions: Mapping[int, int], columns: TableColumns
    ) -> None:
        self._tables[topic] = self.lake.create(topic, columns.schema, facts, positions, columns.properties())
