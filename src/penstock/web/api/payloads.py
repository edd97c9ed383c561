"""Bytes of records as JSON, and back.

    encoding   value                                            key, header values
    json       any JSON; stored as its text, as it was sent     text
    text       a string; stored as UTF-8                        text
    base64     a string; stored as the bytes that it means      base64

A value of null is no value at all (in a compacted topic, a deletion) in every encoding. A key is text also beside JSON
values, so that "42" is the same key, in the same partition, as a Kafka client's b"42".

A response may have another encoding than the request asked for: a value that is not JSON is given as text, and bytes
that are not UTF-8 as base64. `value_encoding`, `key_encoding` and a header's `encoding` say which it is.
"""

import base64
import binascii
from typing import Any, Literal

import msgspec

from penstock.batch import Record
from penstock.web.api.problems import wrong

Encoding = Literal["json", "text", "base64"]
TextEncoding = Literal["text", "base64"]

NULL = b"null"


class HeaderOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    encoding: TextEncoding


class RecordOut(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was read."""

    offset: int
    timestamp_ms: int
    key: str | None
    key_encoding: TextEncoding
    value: Any
    value_encoding: Encoding
    headers: list[HeaderOut]


# --- requests


def value_bytes(value: msgspec.Raw, encoding: Encoding, field: str) -> bytes | None:
    """The bytes that are stored for a value."""
    text = bytes(value)
    if text == NULL:
        return None
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as trouble:
        raise wrong(field, f"not JSON: {trouble}") from None
    except RecursionError:
        raise wrong(field, "nested too deeply") from None
    if encoding == "json":
        return text
    if not isinstance(decoded, str):
        raise wrong(field, f"expected a string, because the encoding is {encoding}")
    return text_bytes(decoded, encoding, field)


def text_bytes(text: str | None, encoding: Encoding, field: str) -> bytes | None:
    """The bytes that are stored for a key or a header's value."""
    if text is None:
        return None
    if encoding != "base64":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as trouble:
        raise wrong(field, f"not base64: {trouble}") from None


# --- responses


def record_out(record: Record, encoding: Encoding) -> RecordOut:
    key, key_encoding = _text(record.key, encoding)
    value, value_encoding = _value(record.value, encoding)
    return RecordOut(
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=key,
        key_encoding=key_encoding,
        value=value,
        value_encoding=value_encoding,
        headers=[_header(name, data, encoding) for name, data in record.headers],
    )


def _header(name: str, data: bytes | None, encoding: Encoding) -> HeaderOut:
    value, told = _text(data, encoding)
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return HeaderOut(name=shown, value=value, encoding=told)


def _value(data: bytes | None, encoding: Encoding) -> tuple[object, Encoding]:
    if data is None:
        return None, encoding
    if encoding == "json" and _is_json(data):
        return msgspec.Raw(data), "json"
    return _text(data, encoding)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _text(data: bytes | None, encoding: Encoding) -> tuple[str | None, TextEncoding]:
    if encoding != "base64":
        try:
            return (None if data is None else data.decode()), "text"
        except UnicodeDecodeError:
            pass
    return (None if data is None else base64.b64encode(data).decode()), "base64"
