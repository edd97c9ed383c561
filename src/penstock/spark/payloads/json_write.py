"""Rows to JSON, column by column: every column becomes a column of JSON text, and these are joined.

As Spark's to_json does, fields that are null are left out, binary is base64, and numbers that are not finite are
the strings "NaN", "Infinity" and "-Infinity". Unlike it, timestamps keep their microseconds.
"""

import binascii
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from .interfaces import Encoder, PayloadError
from .json_read import json_refusal
from .spark_types import check_supported

# Years that ISO 8601 writes with four digits, as every reader expects them.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
DAY_MICROS = 86_400_000_000
ESCAPED = r'["\\\x00-\x1f]'


class JsonEncoder(Encoder):
    def __init__(self, schema: StructType) -> None:
        check_supported(schema, "json", json_refusal)

    def encode(self, values: pa.StructArray) -> pa.BinaryArray:
        return text_of(values, "").cast(pa.binary())


def text_of(array: pa.Array, path: str) -> pa.StringArray:
    """JSON text of each element; null where it is null."""
    for fits, write in _WRITERS:
        if fits(array.type):
            return write(array, path)
    raise PayloadError(f"field {path!r} of type {array.type} cannot be written as JSON")


def joined(*parts: pa.Array | str) -> pa.StringArray:
    """The parts joined, row by row; null if one of them is. The last argument of Arrow's function is the separator."""
    return pc.binary_join_element_wise(*parts, "")


def _struct(array: pa.StructArray, path: str) -> pa.StringArray:
    members = []
    # flatten() applies the struct's own nulls and its offset to the fields.
    for field, child in zip(array.type, array.flatten(), strict=True):
        text = text_of(child, f"{path}.{field.name}" if path else field.name)
        member = joined(f",{json.dumps(field.name, ensure_ascii=False)}:", text)
        # Not by null_handling="skip": in Arrow 26 that loses the rows in which every part is null.
        members.append(pc.fill_null(member, ""))
    inside = pc.binary_replace_slice(joined(*members).cast(pa.binary()), 0, 1, b"").cast(pa.string())
    return _where(array, joined("{", inside, "}"))


def _where(array: pa.Array, text: pa.StringArray) -> pa.StringArray:
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string())) if array.null_count else text


def _list(array: pa.ListArray, path: str) -> pa.StringArray:
    elements = pc.fill_null(text_of(array.flatten(), f"{path}[]"), "null")
    return _bracketed(array, elements, "[", "]")


def _map(array: pa.MapArray, path: str) -> pa.StringArray:
    entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    keys, items = entries.flatten().flatten()
    pairs = joined(_string(keys, path), ":", pc.fill_null(text_of(items, path), "null"))
    return _bracketed(array, pairs, "{", "}")


def _bracketed(array: pa.Array, elements: pa.StringArray, left: str, right: str) -> pa.StringArray:
    """Puts the elements of all lists, which come in a row, back into their lists and joins these. A null has none."""
    counts = pc.fill_null(pc.list_value_length(array.cast(_plain_list(array.type))), 0)
    ends = pc.cumulative_sum(counts)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), ",")
    return _where(array, joined(left, texts, right))


def _plain_list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([kind.key_field, kind.item_field])) if pa.types.is_map(kind) else kind


def _string(array: pa.StringArray, path: str) -> pa.StringArray:
    if pc.any(pc.match_substring_regex(array, ESCAPED)).as_py():
        array = pc.replace_substring_regex(array, r'["\\]', r"\\\0")
        for code in range(0x20):
            if pc.any(pc.match_substring(array, chr(code))).as_py():
                array = pc.replace_substring(array, chr(code), f"\\u{code:04x}")
    return joined('"', array, '"')


def _float(array: pa.Array, path: str) -> pa.StringArray:
    text = pc.replace_substring_regex(array.cast(pa.string()), r"^(-?[0-9]+)$", r"\1.0")
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return text
    odd = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    for found, written in odd.items():
        text = pc.if_else(pc.equal(text, found), written, text)
    return text


def _binary(array: pa.BinaryArray, path: str) -> pa.StringArray:
    encode = binascii.b2a_base64
    texts = [None if v is None else encode(v, newline=False) for v in array.to_pylist()]
    return joined('"', pa.array(texts, pa.binary()).cast(pa.string()), '"')


def _date(array: pa.Date32Array, path: str) -> pa.StringArray:
    return joined('"', iso_dates(array, path), '"')


def _timestamp(array: pa.TimestampArray, path: str) -> pa.StringArray:
    return joined('"', iso_timestamps(array, path), '"')


def iso_dates(array: pa.Date32Array, path: str) -> pa.StringArray:
    _check_years(array.cast(pa.int32()), FIRST_DAY, LAST_DAY, path)
    return array.cast(pa.string())


def iso_timestamps(array: pa.TimestampArray, path: str) -> pa.StringArray:
    micros = array.cast(pa.timestamp("us", array.type.tz))
    _check_years(micros.cast(pa.int64()), FIRST_DAY * DAY_MICROS, (LAST_DAY + 1) * DAY_MICROS - 1, path)
    text = micros.cast(pa.timestamp("us")).cast(pa.string())
    return joined(
        pc.binary_replace_slice(text.cast(pa.binary()), 10, 11, b"T").cast(pa.string()), _zone(array)
    )


def _zone(array: pa.TimestampArray) -> str:
    return "Z" if array.type.tz else ""


def _check_years(numbers: pa.Array, low: int, high: int, path: str) -> None:
    ends = pc.min_max(numbers)
    if ends["min"].is_valid and (ends["min"].as_py() < low or ends["max"].as_py() > high):
        raise PayloadError(
            f"field {path!r} holds a date outside the years 1 to 9999, which has no ISO 8601 text"
        )


def _plain(array: pa.Array, path: str) -> pa.StringArray:
    return array.cast(pa.string())


_WRITERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, str], pa.StringArray]]] = [
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_string, _string),
    (pa.types.is_floating, _float),
    (pa.types.is_binary, _binary),
    (pa.types.is_date32, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_integer, _plain),
    (pa.types.is_boolean, _plain),
    (pa.types.is_decimal, _plain),
]
