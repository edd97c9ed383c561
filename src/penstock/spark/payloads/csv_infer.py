"""The schema of a sample of CSV rows: columns _c0, _c1, ... as Spark names them, each of the narrowest type that fits.

The types that are tried, in this order: bigint, double, boolean, date, timestamp; a column that fits none is a string.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .csv_read import CsvDecoder, CsvReader, WrongCount
from .interfaces import BadValue, PayloadError, clip

# Spark's own limit for CSV is 20480; a row with more is no table.
MAX_COLUMNS = 20_480
TRIED: tuple[type[DataType], ...] = (LongType, DoubleType, BooleanType, DateType, TimestampType)


def infer_csv(sample: Sequence[bytes], delimiter: str, quote: str) -> StructType:
    reader = CsvReader(delimiter, quote)
    rows: list[list[str | None]] = []
    for at, value in enumerate(sample):
        try:
            rows.append(_fields(reader, value, len(rows[0]) if rows else None))
        except BadValue as error:
            raise PayloadError(
                f"no schema can be inferred: record {at} of the sample: {clip(str(error))}"
            ) from None
    if not rows:
        raise PayloadError("no schema can be inferred: the sample is empty; give valueSchema")
    columns = zip(*rows, strict=True)
    return StructType([StructField(f"_c{i}", _type_of(column)) for i, column in enumerate(columns)])


def _fields(reader: CsvReader, value: bytes, columns: int | None) -> list[str | None]:
    if not value:
        raise BadValue("the value is empty")
    if columns is not None:
        return reader.texts(value, columns)
    try:
        return reader.texts(value, 1)
    except WrongCount as error:
        if error.found > MAX_COLUMNS:
            raise
        return reader.texts(value, error.found)


def _type_of(column: tuple[str | None, ...]) -> DataType:
    found = ['"' + text.replace('"', '""') + '"' for text in column if text is not None]
    values = pa.array(found, pa.string()).cast(pa.binary())
    for kind in TRIED if found else ():
        if CsvDecoder(StructType([StructField("_", kind())]), ",", '"').takes(values):
            return kind()
    return StringType()
