"""Which records a filter of /v1/browse selects. Pure, and without code of the caller: comparisons of bytes, and a path
into JSON."""

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.web.api.problems import wrong
from penstock.web.browse_frames import MAX_PATH_PARTS, RecordFilter
from penstock.web.scanned_record import ScannedRecord

Matches = Callable[[ScannedRecord], bool]

_MISSING = object()


def compile_filter(wanted: RecordFilter) -> Matches:
    """Problem if parts of it contradict each other."""
    if wanted.header_value is not None and wanted.header is None:
        raise wrong("filter.header", "expected the name of the header that has this value")
    if wanted.field_value is not None and wanted.field is None:
        raise wrong("filter.field", "expected the field that has this value")
    checks = [*_texts(wanted), *_fields(wanted)]
    return lambda scanned: all(check(scanned) for check in checks)


def _texts(wanted: RecordFilter) -> list[Matches]:
    """Cheap checks first."""
    checks: list[Matches] = []
    if wanted.key is not None:
        key = wanted.key.encode()
        checks.append(lambda scanned: scanned.key_contains(key))
    if wanted.value is not None:
        value = wanted.value.encode()
        checks.append(lambda scanned: scanned.value_contains(value))
    if wanted.header is not None:
        name, text = wanted.header, (wanted.header_value or "").encode()
        checks.append(
            lambda scanned: any(one == name and text in (data or b"") for one, data in scanned.record.headers)
        )
    return checks


def _fields(wanted: RecordFilter) -> list[Matches]:
    if wanted.field is None:
        return []
    path, expected = wanted.field.split("."), wanted.field_value
    if len(path) > MAX_PATH_PARTS:
        raise wrong("filter.field", f"a path of {len(path)} parts: at most {MAX_PATH_PARTS}")

    def has_field(scanned: ScannedRecord) -> bool:
        found = _at(scanned, path)
        return found is not _MISSING and (expected is None or _shown(found) == expected)

    return [has_field]


def _at(scanned: ScannedRecord, path: list[str]) -> Any:
    """The part of a JSON value at this path; _MISSING if it is not JSON, or has no such path."""
    try:
        found = scanned.value_as_json()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _MISSING
    for part in path:
        if isinstance(found, dict):
            found = found.get(part, _MISSING)
        elif isinstance(found, list) and part.isdecimal() and len(part) < 10 and int(part) < len(found):
            found = found[int(part)]
        else:
            return _MISSING
    return found


def _shown(found: Any) -> str:
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
