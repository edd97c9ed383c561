"""Whether the Arrow type of a value fits the requested type, and the conversion if it does.

Structs are matched by field name: the order does not matter and fields that were not requested are ignored; a missing
field does not fit. Leaves fit if every value of the one type is a value of the other (int32 to bigint, float to
double, dictionary to its values), or if it can be checked for each value (integers that are small enough, timestamps
in nanoseconds that are whole microseconds, decimals).

With `missing_is_null`, a missing field that may be null fits, and is null: schemas get new fields over time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .interfaces import BadValue, shown
from .ipc_scan import MAX_UNPACKED_BYTES
from .spark_types import path_of

Convert = Callable[[pa.Array], pa.Array]

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def fit(found: pa.DataType, wanted: pa.DataType, path: str = "", *, missing_is_null: bool = False) -> Convert:
    """A function from arrays of `found` to arrays of `wanted`; BadValue names the field that does not fit."""
    if pa.types.is_dictionary(found):
        return _then(
            _undictionary(path), fit(found.value_type, wanted, path, missing_is_null=missing_is_null)
        )
    if pa.types.is_null(found):
        return lambda array: pa.nulls(len(array), wanted)
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        return _fit_struct(found, wanted, path, missing_is_null)
    if pa.types.is_map(wanted) and pa.types.is_map(found):
        return _fit_map(found, wanted, path, missing_is_null)
    if pa.types.is_list(wanted) and _is_any_list(found):
        return _fit_list(found, wanted, path, missing_is_null)
    if found == wanted:
        return lambda array: array
    if _safe_leaf(found, wanted):
        return _checked_cast(wanted, path)
    raise BadValue(f"column {shown(path)!r}: expected {shown(wanted)}, found {shown(found)}")


def _then(first: Convert, second: Convert) -> Convert:
    return lambda array: second(first(array))


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _fit_struct(found: pa.DataType, wanted: pa.DataType, path: str, missing_is_null: bool) -> Convert:
    absent = frozenset(f.name for f in wanted if f.nullable) - {f.name for f in found}
    picks = [
        None
        if missing_is_null and f.name in absent
        else pick(found, f, path, missing_is_null=missing_is_null)
        for f in wanted
    ]
    fields = list(wanted)

    def convert(array: pa.StructArray) -> pa.StructArray:
        parts = [
            pa.nulls(len(array), field.type) if one is None else one[1](array.field(one[0]))
            for one, field in zip(picks, fields, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=_mask(array))

    return convert


def pick(found: Any, wanted: pa.Field, path: str, *, missing_is_null: bool = False) -> tuple[int, Convert]:
    """The number of the field of `found` (a struct type or a schema) that has `wanted`'s name, and its conversion."""
    name = path_of(path, wanted.name)
    indices = found.get_all_field_indices(wanted.name)
    if len(indices) != 1:
        what = f"{len(indices)} columns of that name" if indices else "no such column"
        raise BadValue(f"column {shown(name)!r}: expected {shown(wanted.type)}, found {what}")
    kind = found.field(indices[0]).type
    return indices[0], fit(kind, wanted.type, name, missing_is_null=missing_is_null)


def _fit_list(found: pa.DataType, wanted: pa.DataType, path: str, missing_is_null: bool) -> Convert:
    inner = fit(found.value_type, wanted.value_type, f"{path}[]", missing_is_null=missing_is_null)
    plain = pa.list_(found.value_field)

    def convert(array: pa.Array) -> pa.ListArray:
        array = array if pa.types.is_list(found) else _cast(array, plain, path)
        return pa.ListArray.from_arrays(array.offsets, inner(array.values), type=wanted, mask=_mask(array))

    return convert


def _fit_map(found: pa.DataType, wanted: pa.DataType, path: str, missing_is_null: bool) -> Convert:
    keys = fit(found.key_type, wanted.key_type, f"{path}.key", missing_is_null=missing_is_null)
    items = fit(found.item_type, wanted.item_type, f"{path}.value", missing_is_null=missing_is_null)

    def convert(array: pa.MapArray) -> pa.MapArray:
        new_keys = keys(array.keys)
        if new_keys.null_count:
            raise BadValue(f"column {shown(path)!r}: a map has a null key")
        offsets, mask = array.offsets, _mask(array)
        return pa.MapArray.from_arrays(offsets, new_keys, items(array.items), type=wanted, mask=mask)

    return convert


def _mask(array: pa.Array) -> pa.BooleanArray | None:
    return array.is_null() if array.null_count else None


def _undictionary(path: str) -> Convert:
    def convert(array: pa.DictionaryArray) -> pa.Array:
        values = array.dictionary
        if _is_view(values.type):
            raise BadValue(
                f"column {shown(path)!r}: a dictionary of {values.type} is not read; write plain strings"
            )
        if any(test(values.type) for test in _TEXTS + _BYTES) and not pa.types.is_fixed_size_binary(
            values.type
        ):
            # A thousand indices may all point to the same megabyte.
            _check_bytes(_lengths(values).take(array.indices), path)
        return array.dictionary_decode()

    return convert


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _views(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """One row of four numbers per view; the first is its length. (Arrow has no kernel for that.)"""
    views = np.frombuffer(array.buffers()[1] or b"", np.int32).reshape(-1, 4)
    return views[array.offset : array.offset + len(array)]


def _tame(array: pa.Array) -> pa.Array:
    """The array with empty views at its nulls: Arrow 26 does not check those views, yet follows them when it casts."""
    if not array.null_count:
        return array
    views = _views(array).copy()
    views[np.asarray(array.is_null())] = 0
    present = pc.is_valid(array).buffers()[1]
    return pa.Array.from_buffers(array.type, len(array), [present, pa.py_buffer(views), *array.buffers()[2:]])


def _lengths(array: pa.Array) -> pa.Array:
    return pa.array(_views(array)[:, 0]) if _is_view(array.type) else pc.binary_length(array)


def _check_bytes(lengths: pa.Array, path: str) -> None:
    total = pc.sum(lengths.cast(pa.int64())).as_py() or 0
    if total > MAX_UNPACKED_BYTES:
        raise BadValue(
            f"column {shown(path)!r} unpacks to {total} bytes; at most {MAX_UNPACKED_BYTES} are read"
        )


def _checked_cast(wanted: pa.DataType, path: str) -> Convert:
    def convert(array: pa.Array) -> pa.Array:
        if _is_view(array.type):
            array = _tame(array)
            # Views may overlap, so that many share the same bytes.
            _check_bytes(_lengths(array), path)
        return _cast(array, wanted, path)

    return convert


def _cast(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadValue(
            f"column {shown(path)!r}: not every {shown(array.type)} fits {shown(wanted)}: {error}"
        ) from None


def _safe_leaf(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast from one type to the other keeps the meaning of every value."""
    types = pa.types
    if types.is_integer(wanted) or types.is_floating(wanted):
        return _safe_number(found, wanted)
    if types.is_string(wanted):
        return any(test(found) for test in _TEXTS)
    if types.is_binary(wanted):
        return any(test(found) for test in _BYTES)
    if types.is_timestamp(wanted):
        # A time with a zone is an instant; one without is not, and Arrow cannot know which was meant.
        return bool(types.is_timestamp(found) and (found.tz is None) == (wanted.tz is None))
    if types.is_date32(wanted):
        return bool(types.is_date64(found))
    return bool(types.is_decimal(wanted) and types.is_decimal(found))


# Bits of whole numbers that each type holds without loss.
_EXACT_BITS: dict[pa.DataType, int] = {
    pa.int8(): 7,
    pa.int16(): 15,
    pa.int32(): 31,
    pa.int64(): 63,
    pa.uint8(): 8,
    pa.uint16(): 16,
    pa.uint32(): 32,
    pa.uint64(): 64,
    pa.float16(): 11,
    pa.float32(): 24,
    pa.float64(): 53,
}


def _safe_number(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found))
    return found in _EXACT_BITS and _EXACT_BITS[found] <= _EXACT_BITS[wanted]
