"""Each format reads back its own values: every supported type, nested, with nulls."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.payloads import PayloadOptions, decoder_for, encoder_for

from .strategies import nested_types, simple_types, structs, tables

ASCII_NAMES = ("a", "b", "id", "Name", "x_y")
Table = tuple[StructType, pa.StructArray]
quick = settings(max_examples=60, deadline=None)


def check(value_format: str, table: Table, options: PayloadOptions) -> None:
    schema, rows = table
    decoded = decoder_for(value_format, schema, options).decode(
        encoder_for(value_format, schema, options).encode(rows)
    )
    assert decoded.bad == []
    decoded.values.validate(full=True)
    assert decoded.values.to_pylist() == rows.to_pylist()
    expected = pa.struct(list(to_arrow_schema(schema, timezone="UTC")))
    assert pa.schema([pa.field("value", decoded.values.type)]).equals(
        pa.schema([pa.field("value", expected)]), check_metadata=True
    )


@quick
@given(tables(structs(nested_types())))
def test_json(table: Table) -> None:
    check("json", table, PayloadOptions(value_format="json"))


@quick
@given(tables(structs(simple_types)), st.sampled_from([(",", '"'), ("\t", "'"), ("|", '"'), ("^", "]")]))
def test_csv(table: Table, dialect: tuple[str, str]) -> None:
    delimiter, quote = dialect
    check("csv", table, PayloadOptions(value_format="csv", csv_delimiter=delimiter, csv_quote=quote))


@quick
@given(
    tables(structs(nested_types(ASCII_NAMES), ASCII_NAMES)),
    st.sampled_from(["none", "confluent", "container"]),
)
def test_avro(table: Table, framing: str) -> None:
    ids = frozenset([7]) if framing == "confluent" else frozenset[int]()
    check("avro", table, PayloadOptions(value_format="avro", avro_framing=framing, avro_schema_ids=ids))


@quick
@given(tables(structs(nested_types())))
def test_arrow_row_by_row(table: Table) -> None:
    check("arrow", table, PayloadOptions(value_format="arrow"))


@quick
@given(tables(structs(nested_types())), st.integers(20_000, 60_000))
def test_arrow_packed(table: Table, max_bytes: int) -> None:
    schema, rows = table
    rows = rows.drop_null()
    options = PayloadOptions(value_format="arrow")
    packed = encoder_for("arrow", schema, options).pack(rows, max_bytes)
    assert all(len(stream) <= max_bytes for stream in packed)
    decoded = decoder_for("arrow", schema, options).decode(pa.array(packed, pa.binary()))
    assert decoded.bad == []
    assert decoded.values.to_pylist() == rows.to_pylist()
    assert decoded.rows is not None
    assert decoded.rows.to_pylist() == sorted(decoded.rows.to_pylist())


@quick
@given(tables(structs(nested_types())), st.data())
def test_slices_are_written_and_read_as_their_visible_rows(table: Table, data: st.DataObject) -> None:
    schema, rows = table
    start = data.draw(st.integers(0, len(rows)))
    options = PayloadOptions()
    for value_format in ("json", "arrow"):
        encoded = encoder_for(value_format, schema, options).encode(rows.slice(start))
        padded = pa.concat_arrays([pa.array([b"junk", None, b""], pa.binary()), encoded]).slice(3)
        decoded = decoder_for(value_format, schema, options).decode(padded)
        assert decoded.bad == []
        assert decoded.values.to_pylist() == rows.slice(start).to_pylist()
