"""A field more for a JSON object, as text: nothing is parsed and written again, so numbers stay as they were written.

Executors run this for each record of *enrich*.
"""

import json
from typing import Any


def with_field(value: bytes | None, name: str, added: str | None) -> bytes | None:
    """The object with a field behind its last one: `added` if it is JSON, else as a string; null if there is none. A
    value that is no JSON object stays as it is."""
    if value is None or not isinstance(_parsed(value), dict):
        return value
    head = value.rstrip(b" \t\r\n")[:-1].rstrip(b" \t\r\n")
    comma = b"" if head.strip(b" \t\r\n") == b"{" else b","
    return head + comma + f"{json.dumps(name)}:{_as_json(added)}}}".encode()


def _as_json(text: str | None) -> str:
    if text is None:
        return "null"
    return json.dumps(text, ensure_ascii=False) if _parsed(text) is _NOTHING else text


_NOTHING = object()


def _parsed(text: bytes | str) -> Any:
    """_NOTHING if it is no JSON."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_refused)
    except (ValueError, RecursionError):
        return _NOTHING


def _refused(name: str) -> None:
    """NaN and Infinity, which Python's parser takes and JSON does not have."""
    raise ValueError(name)
