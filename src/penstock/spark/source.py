"""`format("penstock")`: the data source that Spark finds by itself, for reading and writing, batch and streaming."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.client.wire import Cluster
from penstock.spark import options as source_options
from penstock.spark import schema as schemas
from penstock.spark.batch_reader import BatchReader
from penstock.spark.options import SourceOptions
from penstock.spark.stream_reader import StreamReader
from penstock.spark.value_schema import value_schema
from penstock.spark.values import ValueColumn


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
        options = self._either()
        return schemas.spark_schema(options.columns, value_schema(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options.parse(self._given, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options.parse(self._given, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import PenstockArrowWriter  # readers need not load it
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

    def _either(self) -> SourceOptions:
        bounds = {"startingoffsets", "endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
        rest = {name: value for name, value in self._given.items() if name.lower() not in bounds}
        return source_options.parse(rest, streaming=True)


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    decodes = options.payload.value_format != "raw"
    schemas.check(schema, decodes_value=decodes, has_headers="headers" in options.columns)
    ValueColumn(options, schema)  # a type that the format cannot carry is found here, not by the first task
