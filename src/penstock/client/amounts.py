"""Times and headers as people write them: seconds, timedelta, datetime; text or bytes."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

Seconds = float | int | timedelta
Moment = float | int | datetime
"""Seconds since 1970, or a datetime that knows its time zone."""
Text = str | bytes
Headers = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]

MESSAGE_ID: Final = "penstock-message-id"
DELAY: Final = "penstock-delay-ms"
DELIVER_AT: Final = "penstock-deliver-at"
TTL: Final = "penstock-ttl-ms"

MAX_ID_BYTES: Final = 256
"""Topics that deduplicate refuse longer ones."""
LONGEST_SECONDS: Final = 1e17
RETRY_SECONDS_MAX: Final = 7 * 24 * 3600.0
"""Brokers take no longer delay."""


def as_seconds(name: str, amount: Seconds) -> float:
    """TypeError or ValueError name what is no time at all; it may be negative."""
    if isinstance(amount, timedelta):
        return amount.total_seconds()
    if not isinstance(amount, (float, int)):
        raise TypeError(f"{name}={amount!r}: expected seconds, or a timedelta")
    if amount != amount:
        raise ValueError(f"{name}={amount!r}: expected seconds, or a timedelta")
    # An integer may be larger than any float: a billion years are as good.
    return float(max(-LONGEST_SECONDS, min(amount, LONGEST_SECONDS)))


def retry_seconds(delay: Seconds) -> float:
    """A delay as brokers take it. One that is computed is easily a little below 0, or grows too long; a job must not
    suffer for that, so the nearest that is possible counts."""
    return min(max(as_seconds("delay", delay), 0.0), RETRY_SECONDS_MAX)


def as_ms(name: str, amount: Seconds) -> int:
    """ValueError names what is negative."""
    seconds = as_seconds(name, amount)
    if not 0 <= seconds < 1e12:
        raise ValueError(f"{name}={amount!r}: expected seconds, at least 0, or a timedelta")
    return round(seconds * 1000)


def moment_ms(name: str, moment: Moment) -> int:
    """Milliseconds since 1970."""
    if not isinstance(moment, datetime):
        return as_ms(name, moment)
    if moment.tzinfo is None:
        raise ValueError(f"{name}={moment!r} has no time zone: use datetime.now(UTC) + ..., or .astimezone()")
    return round(moment.timestamp() * 1000)


def as_bytes(name: str, text: Text | None) -> bytes | None:
    """TypeError names what is neither text nor bytes."""
    if isinstance(text, str):
        return text.encode()
    if text is None or isinstance(text, bytes):
        return text
    if isinstance(text, (bytearray, memoryview)):
        return bytes(text)
    raise TypeError(
        f"{name}={text!r:.80}: expected bytes, a str or None; of other things make text: json.dumps(...)"
    )


RecordHeaders = list[tuple[str, Text | None]]


def record_headers(
    headers: Headers | None,
    *,
    message_id: Text | None = None,
    delay: Seconds | None = None,
    deliver_at: Moment | None = None,
    ttl: Seconds | None = None,
) -> RecordHeaders:
    """A record's headers: the caller's, and ours behind them. Numbers are in ASCII."""
    if delay is not None and deliver_at is not None:
        raise ValueError("delay and deliver_at both say when: give one of them")
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    made: RecordHeaders = [(name, as_bytes(f"headers[{name!r}]", value)) for name, value in pairs]
    if message_id is not None:
        made.append((MESSAGE_ID, _checked_id(message_id)))
    if delay is not None:
        made.append((DELAY, b"%d" % as_ms("delay", delay)))
    if deliver_at is not None:
        made.append((DELIVER_AT, b"%d" % moment_ms("deliver_at", deliver_at)))
    if ttl is not None:
        made.append((TTL, b"%d" % as_ms("ttl", ttl)))
    return made


def _checked_id(message_id: Text) -> bytes:
    made = as_bytes("message_id", message_id) or b""
    if not 1 <= len(made) <= MAX_ID_BYTES:
        raise ValueError(f"message_id of {len(made)} bytes: expected 1 to {MAX_ID_BYTES}")
    return made
