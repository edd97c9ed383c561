"""The columns of a reader, as Spark's and as Arrow's schema."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
"""The columns and types of Spark's Kafka connector."""


def spark_schema(columns: Sequence[str], value: StructType | None = None) -> StructType:
    """`value` is the type of the value column where a valueFormat decodes it."""
    types = {**TYPES, "value": value} if value is not None else TYPES
    return StructType([StructField(name, types[name]) for name in columns])


def arrow_schema(schema: StructType) -> "pa.Schema":
    """The schema that Spark demands of every batch of a reader."""
    from pyspark.sql.pandas.types import to_arrow_schema  # it loads Arrow, which most planning does without

    return to_arrow_schema(schema, timezone="UTC")


def check(given: StructType, *, decodes_value: bool, has_headers: bool) -> None:
    """A schema given by .schema(...) may leave columns out or change their order; no types but the value's are free."""
    types = {name: kind for name, kind in TYPES.items() if has_headers or name != "headers"}
    for field in given:
        if field.name not in types:
            raise ConfigError("schema", field.name, f"some of the columns {', '.join(types)}")
        if decodes_value and field.name == "value":
            _check_struct(field.dataType)
        elif field.dataType != types[field.name]:
            raise ConfigError(
                "schema",
                f"{field.name} {field.dataType.simpleString()}",
                f"{types[field.name].simpleString()}. The columns are fixed; valueFormat decodes the value",
            )
    if not given.fields:
        raise ConfigError("schema", "no columns", f"some of the columns {', '.join(types)}")


def _check_struct(kind: DataType) -> None:
    if not isinstance(kind, StructType):
        raise ConfigError(
            "schema", f"value {kind.simpleString()}", "a struct, since valueFormat decodes the value"
        )
