"""The columns of an archive's tables: those of a record; where a format decodes the value, its fields instead of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from penstock.errors import ConfigError
from penstock.spark.lake.record_columns import DATE, RECORD_SCHEMA, UTC_DATE
from penstock.spark.payloads import given_schema
from penstock.spark.payloads.options import PAYLOAD_OPTIONS, SECRET_OPTIONS, PayloadOptions
from penstock.spark.problems import ArchiveError
from penstock.spark.schema import arrow_schema

if TYPE_CHECKING:
    from penstock.spark.lake.topic_table import TopicTable

VALUE: Final = "value"
DATE_FIELD: Final = RECORD_SCHEMA.field(DATE)
VALUE_OPTIONS: Final = "penstock.valueOptions"
"""The property of a table that says how its values were decoded: the source's options, in JSON."""

PLAIN_TYPES: Final = (
    T.StringType, T.BinaryType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType,
    T.DoubleType, T.DecimalType, T.DateType, T.TimestampType,
)  # fmt: skip
"""Types that every reader of Delta knows. Others, such as timestamps without a zone, need newer features of tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumns:
    schema: pa.Schema = RECORD_SCHEMA
    fields: tuple[str, ...] | None = None
    """The fields of the value that are columns; None: the value is a column as it is."""
    options: Mapping[str, str] = field(default_factory=dict)
    """How the source decodes the value."""

    def properties(self) -> dict[str, str]:
        """The options that are stored with the table."""
        return {VALUE_OPTIONS: json.dumps(dict(sorted(self.options.items())))} if self.options else {}

    def of(self, rows: DataFrame) -> DataFrame:
        """Rows of the source with the columns of the table."""
        own = [name for name in RECORD_SCHEMA.names if name in rows.columns]
        if self.fields is not None:
            own.remove(VALUE)
            own += [f"value.{_quoted(name)} AS {_quoted(name)}" for name in self.fields]
        return rows.selectExpr(*own, f"{UTC_DATE} AS {DATE}")


RAW: Final = TableColumns()


def columns_of(given: Mapping[str, str]) -> TableColumns:
    """The columns that these options of the source ask for."""
    by_name = {name.lower(): name for name in PAYLOAD_OPTIONS}
    options = {by_name[name.lower()]: value for name, value in given.items() if name.lower() in by_name}
    payload = PayloadOptions.from_options(options)
    options = {name: value for name, value in options.items() if name not in SECRET_OPTIONS}
    if payload.value_format == "raw":
        return RAW
    value = given_schema(payload)
    if value is None:
        raise ConfigError("valueSchema", None, "a schema: the columns of a table must not depend on a sample")
    _check_fields(value)
    fields = list(arrow_schema(value))
    # Behind the record's own: delta-rs has statistics of the first 32 columns, and `offset` must be among them.
    schema = pa.schema(
        [*(each for each in RECORD_SCHEMA if each.name not in (VALUE, DATE)), *fields, DATE_FIELD]
    )
    return TableColumns(schema=schema, fields=tuple(value.names), options=options)


def check_for_iceberg(columns: TableColumns) -> None:
    """Iceberg has no whole numbers below 32 bits: in the table such a column would have another type than here."""
    for each in columns.schema:
        if _is_small(each.type):
            raise ConfigError(
                "valueSchema", f"{each.name} {_spark_type(each)}", "int, which Iceberg has, instead"
            )


def _is_small(kind: pa.DataType) -> bool:
    parts = [kind.field(index).type for index in range(kind.num_fields)]
    return pa.types.is_int8(kind) or pa.types.is_int16(kind) or any(map(_is_small, parts))


def columns_in(table: "TopicTable") -> TableColumns:
    """The columns that the table was last written with."""
    kept = table.properties.get(VALUE_OPTIONS)
    return RAW if kept is None else columns_of(json.loads(kept))


def adapt(table: "TopicTable", wanted: TableColumns) -> None:
    """The table has all columns that are wanted. ArchiveError where it has one with another type; columns that are no
    longer wanted stay, and are null in new rows."""
    if (VALUE_OPTIONS in table.properties) != bool(wanted.options):
        raise ArchiveError(
            f"{table.folder} has values {_told(columns_in(table))}, and this run has them {_told(wanted)}: archive to "
            "another path"
        )
    there = {each.name.lower(): each for each in table.schema()}
    missing = [each for each in wanted.schema if each.name.lower() not in there]
    for each in wanted.schema:
        known = there.get(each.name.lower(), each)
        if _spark_type(known) != _spark_type(each) or known.name != each.name:
            raise ArchiveError(
                f"the column {known.name} of {table.folder} is {_spark_type(known)}, and the schema of this run has "
                f"{each.name} {_spark_type(each)}: a column keeps its name and type. Archive to another path, or name "
                "the field otherwise"
            )
    if missing:
        table.add_columns(missing)
    properties = wanted.properties()
    if properties and table.properties.get(VALUE_OPTIONS) != properties[VALUE_OPTIONS]:
        table.set_properties(properties)


def _check_fields(value: T.StructType) -> None:
    taken = {name.lower() for name in RECORD_SCHEMA.names if name != VALUE}
    for each in value:
        if each.name.lower() in taken:
            raise ConfigError(
                "valueSchema", each.name, "fields with other names than the table's columns, each once: "
                f"{', '.join(name for name in RECORD_SCHEMA.names if name != VALUE)}",
            )  # fmt: skip
        taken.add(each.name.lower())
        _check_type(each.name, each.dataType)


def _check_type(name: str, kind: T.DataType) -> None:
    if isinstance(kind, T.ArrayType):
        _check_type(name, kind.elementType)
    elif isinstance(kind, T.MapType):
        _check_type(name, kind.keyType)
        _check_type(name, kind.valueType)
    elif isinstance(kind, T.StructType):
        for each in kind:
            _check_type(f"{name}.{each.name}", each.dataType)
    elif not isinstance(kind, PLAIN_TYPES):
        raise ConfigError(
            "valueSchema", f"{name} {kind.simpleString()}", "types that all readers of Delta tables know"
        )


def _spark_type(column: pa.Field) -> str:
    """The type by Spark's name, whatever Arrow calls the parts of lists and maps."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(column.type).simpleString()


def _told(columns: TableColumns) -> str:
    return (
        f"decoded by valueFormat={columns.options.get('valueFormat')}" if columns.options else "as they are"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
