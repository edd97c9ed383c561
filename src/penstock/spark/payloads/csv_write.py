"""Rows to CSV, column by column: every column becomes a column of fields, and these are joined.

A null is an empty field; an empty string is a quoted empty one. Fields are quoted only where they must be.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from .csv_read import csv_refusal, hexed
from .interfaces import Encoder
from .json_write import iso_dates, iso_timestamps
from .spark_types import check_supported


class CsvEncoder(Encoder):
    def __init__(self, schema: StructType, delimiter: str, quote: str) -> None:
        check_supported(schema, "csv", csv_refusal)
        self._delimiter, self._quote = delimiter, quote
        # A byte order mark at the start of a row would be taken for one.
        self._special = f"^$|^\ufeff|[{hexed(delimiter)}{hexed(quote)}\r\n]"

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        parts = [self._fields(c, f.name) for f, c in zip(values.type, values.flatten(), strict=True)]
        rows = pc.binary_join_element_wise(*parts, self._delimiter)
        if values.null_count:
            rows = pc.if_else(values.is_valid(), rows, pa.scalar(None, pa.string()))
        return rows.cast(pa.binary())

    def _fields(self, column: pa.Array, path: str) -> pa.StringArray:
        if pa.types.is_date32(column.type):
            text = iso_dates(column, path)
        elif pa.types.is_timestamp(column.type):
            text = iso_timestamps(column, path)
        else:
            text = column.cast(pa.string())
        return pc.fill_null(self._quoted(text), "")

    def _quoted(self, text: pa.StringArray) -> pa.StringArray:
        special = pc.match_substring_regex(text, self._special)
        if not pc.any(special).as_py():
            return text
        doubled = pc.replace_substring(text, self._quote, self._quote * 2)
        return pc.if_else(special, pc.binary_join_element_wise(self._quote, doubled, self._quote, ""), text)
