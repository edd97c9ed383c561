"""A message as a line of output."""

import base64
import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

Printer = Callable[[Message], bytes]


def text_printer(key_separator: str | None) -> Printer:
    """The value as it is, with the key before it when asked; null is an empty line."""
    if key_separator is None:
        return lambda message: (message.value() or b"") + b"\n"
    between = key_separator.encode()
    return lambda message: (message.key() or b"") + between + (message.value() or b"") + b"\n"


def json_printer(message: Message) -> bytes:
    """Everything about the message as one JSON object.

    Bytes that are not UTF-8 come as base64 under a name that says so ("value_base64").
    """
    kind, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    shown: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        **_bytes("key", message.key()),
        **_bytes("value", message.value()),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _bytes(name: str, content: Any) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
