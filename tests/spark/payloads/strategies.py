"""Schemas, rows that fit them, and damage, for the tests of the payload formats."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.payloads.spark_types import INT_BITS, arrow_struct

NAMES = ("a", "b", "id", "Name", "x_y", "é")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
decimals = st.builds(DecimalType, st.just(12), st.integers(0, 12))
simple_types = st.one_of(
    st.sampled_from(
        [
            BooleanType(),
            ByteType(),
            ShortType(),
            IntegerType(),
            LongType(),
            FloatType(),
            DoubleType(),
            StringType(),
            DateType(),
            TimestampType(),
            TimestampNTZType(),
        ]
    ),
    decimals,
)
leaf_types = st.one_of(simple_types, st.just(BinaryType()))


def structs(
    types: st.SearchStrategy[DataType], names: tuple[str, ...] = NAMES
) -> st.SearchStrategy[StructType]:
    def made(labels: list[str]) -> st.SearchStrategy[StructType]:
        fields = [st.builds(StructField, st.just(n), types, st.booleans()) for n in labels]
        return st.tuples(*fields).map(lambda f: StructType(list(f)))

    return st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).flatmap(made)


def nested_types(names: tuple[str, ...] = NAMES) -> st.SearchStrategy[DataType]:
    return st.recursive(
        leaf_types,
        lambda inner: st.one_of(
            st.builds(ArrayType, inner, st.booleans()),
            st.builds(MapType, st.just(StringType()), inner, st.booleans()),
            structs(inner, names),
        ),
        max_leaves=4,
    )


def values(kind: DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    made = _values(kind)
    return st.one_of(st.none(), made) if nullable else made


def _values(kind: DataType) -> st.SearchStrategy[Any]:
    match kind:
        case StructType():
            return st.fixed_dictionaries({f.name: values(f.dataType, f.nullable) for f in kind.fields})
        case ArrayType():
            return st.lists(values(kind.elementType, kind.containsNull), max_size=3)
        case MapType():
            inner = values(kind.valueType, kind.valueContainsNull)
            return st.dictionaries(texts, inner, max_size=3).map(lambda d: list(d.items()))
        case DecimalType():
            limit = 10**kind.precision - 1
            return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-kind.scale))
        case FloatType():
            return st.floats(width=32, allow_nan=False, allow_infinity=False)
    if type(kind) in INT_BITS:
        half = 1 << (INT_BITS[type(kind)] - 1)
        return st.integers(-half, half - 1)
    return LEAVES[type(kind)]


LEAVES: dict[type[DataType], st.SearchStrategy[Any]] = {
    BooleanType: st.booleans(),
    DoubleType: st.floats(allow_nan=False, allow_infinity=False),
    StringType: texts,
    BinaryType: st.binary(max_size=8),
    DateType: st.dates(),
    TimestampType: st.datetimes(timezones=st.just(dt.UTC)),
    TimestampNTZType: st.datetimes(),
}


@st.composite
def tables(draw: st.DrawFn, schemas: st.SearchStrategy[StructType]) -> tuple[StructType, pa.StructArray]:
    """A schema and rows of it; some rows are null as a whole."""
    schema = draw(schemas)
    rows = draw(st.lists(values(schema), max_size=20))
    return schema, pa.array(rows, arrow_struct(schema))
