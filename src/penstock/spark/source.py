"""`format("penstock")`: the data source that Spark finds by itself, for reading and writing, batch and streaming.

Spark imports this module in five kinds of processes, of which most need little of it: one looks for data sources, one
asks for the schema, others plan, read, write and commit. So each method imports what it needs. Arrow alone takes as
long to import as the rest of Penstock's client together.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from penstock.spark.options import SourceOptions


class PenstockDataSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Spark does not say yet whether this will be a batch or a stream. Only the bounds differ between the two, and
        # the reader checks these.
        from penstock.spark.schema import spark_schema

        options = self._either()
        if not options.decodes_value:
            return spark_schema(options.columns)
        from penstock.spark.value_schema import value_schema

        return spark_schema(options.columns, value_schema(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch_reader import BatchReader
        from penstock.spark.options import parse

        options = parse(self._given, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.options import parse
        from penstock.spark.stream_reader import StreamReader

        options = parse(self._given, streaming=True)
        _check_schema(schema, options)
        if options.queue is not None:
            from penstock.spark.queue_reader import QueueReader  # few streams need it

            return QueueReader(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.client.wire import Cluster
        from penstock.spark.sink import PenstockArrowWriter
        from penstock.spark.sink_options import SinkOptions

        options = SinkOptions.from_options(self._given, overwrite=overwrite)
        writer = PenstockArrowWriter(options.client, schema, options)
        # Every attempt of every task would wait as long for brokers that are away. A stream's writer is made again
        # for each micro-batch and leaves it to them.
        with Cluster(options.client) as cluster:
            cluster.topics([options.topic] if options.topic else [])
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink import PenstockStreamArrowWriter
        from penstock.spark.sink_options import SinkOptions

        options = SinkOptions.from_options(self._given)
        return PenstockStreamArrowWriter(options.client, schema, options)

    def _either(self) -> "SourceOptions":
        from penstock.spark.options import parse

        bounds = {"startingoffsets", "endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
        rest = {name: value for name, value in self._given.items() if name.lower() not in bounds}
        return parse(rest, streaming=True)


def _check_schema(schema: StructType, options: "SourceOptions") -> None:
    from penstock.spark.schema import check

    check(schema, decodes_value=options.decodes_value, has_headers="headers" in options.columns)
    if options.decodes_value:
        from penstock.spark.values import ValueColumn

        ValueColumn(
            options, schema
        )  # a type that the format cannot carry is found here, not by the first task
