"""Arguments as people write them (seconds or timedelta, datetime, text or bytes), checked and converted.

A TypeError or ValueError names the argument.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, get_args

import msgspec

Seconds = float | int | timedelta
Moment = float | int | datetime
"""Seconds since 1970, or a datetime with a time zone."""
Text = str | bytes
Headers = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]

MESSAGE_ID: Final = "penstock-message-id"
DELAY: Final = "penstock-delay-ms"
DELIVER_AT: Final = "penstock-deliver-at"
TTL: Final = "penstock-ttl-ms"

MESSAGE_ID_BYTES_MAX: Final = 256
"""Topics that deduplicate refuse longer ones."""
SECONDS_MAX: Final = 1e17
WAIT_SECONDS_MAX: Final = 2_000_000.0
"""23 days: librdkafka counts milliseconds in 31 bits."""
RETRY_SECONDS_MAX: Final = 7 * 24 * 3600.0
"""Brokers accept no longer delay."""
PREFETCH_MAX: Final = 100_000

IsolationLevel = Literal["read_uncommitted", "read_committed"]
"""Whether a reader sees messages of transactions that are open or were aborted."""
READ_UNCOMMITTED: Final = "read_uncommitted"


def as_seconds(name: str, amount: Seconds) -> float:
    """May be negative."""
    if isinstance(amount, timedelta):
        return amount.total_seconds()
    if not isinstance(amount, (float, int)):
        raise TypeError(f"{name}={amount!r}: expected seconds, or a timedelta")
    if amount != amount:
        raise ValueError(f"{name}={amount!r}: expected seconds, or a timedelta")
    # An integer may be larger than any float; SECONDS_MAX is three billion years.
    return float(max(-SECONDS_MAX, min(amount, SECONDS_MAX)))


def retry_seconds(delay: Seconds) -> float:
    """A delay clipped to the range that brokers accept. Computed delays easily become a little negative or too long;
    this must not fail the job."""
    return min(max(as_seconds("delay", delay), 0.0), RETRY_SECONDS_MAX)


def wait_seconds(name: str, amount: Seconds) -> float:
    """How long to wait. ValueError if it is negative; of longer waits only WAIT_SECONDS_MAX."""
    seconds = as_seconds(name, amount)
    if seconds < 0:
        raise ValueError(f"{name}={amount!r}: expected seconds, at least 0, or a timedelta")
    return min(seconds, WAIT_SECONDS_MAX)


def wait_seconds_or_none(name: str, amount: Seconds | None) -> float | None:
    """The same; None waits without an end."""
    if amount is None or (type(amount) is float and 0.0 <= amount <= WAIT_SECONDS_MAX):
        return amount  # by far the most calls
    return wait_seconds(name, amount)


def as_ms(name: str, amount: Seconds) -> int:
    """ValueError if it is negative."""
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
    if text is None or isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, (bytearray, memoryview)):
        return bytes(text)
    raise TypeError(f"{name}={text!r:.80}: expected bytes, a str or None; other values go into json=...")


class Unset(Enum):
    """The default of arguments for which None is a value."""

    UNSET = "UNSET"


UNSET: Final = Unset.UNSET


def payload(value: Text | Unset | None, json: Any) -> bytes | None:
    """The bytes of a message: of `value`, or of `json` as JSON."""
    if (value is UNSET) is (json is UNSET):
        raise TypeError("expected a value (None for none), or json=..., and not both")
    if value is not UNSET:
        return as_bytes("value", value)
    try:
        return msgspec.json.encode(json)
    except (TypeError, ValueError) as unsuitable:
        raise TypeError(f"json={json!r:.80}: {unsuitable}") from None


RecordHeaders = list[tuple[str, Text | None]]


def record_headers(
    headers: Headers | None,
    *,
    message_id: Text | None = None,
    delay: Seconds | None = None,
    deliver_at: Moment | None = None,
    ttl: Seconds | None = None,
) -> RecordHeaders:
    """The caller's headers, followed by Penstock's. Numbers are in ASCII."""
    if headers is None and message_id is None and delay is None and deliver_at is None and ttl is None:
        return []  # by far the most messages
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


def topic_names(topics: str | Sequence[str]) -> tuple[str, ...]:
    """One topic or several."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(names):
        raise ValueError(f"topics={topics!r}: expected the name of a topic, or several")
    return names


def queue_and_topics(
    name: str | Sequence[str], topic: str | Sequence[str] | None, group: str | None
) -> tuple[str, tuple[str, ...]]:
    """The name of a queue and its topics. With `group`, as in Kafka's words, `name` has the topics."""
    if group is not None:
        if topic is not None:
            raise TypeError(f"topic={topic!r} and group={group!r}: name the queue first, then its topic=")
        return checked_name("group", group), topic_names(name)
    if not isinstance(name, str):
        raise TypeError(f"{name!r}: expected the name of a queue; its topics go into topic=")
    return checked_name("name", name), topic_names(name if topic is None else topic)


def checked_prefetch(prefetch: int) -> int:
    if not isinstance(prefetch, int):
        raise TypeError(f"prefetch={prefetch!r}: expected a number, 1 to {PREFETCH_MAX}")
    if not 1 <= prefetch <= PREFETCH_MAX:
        raise ValueError(f"prefetch={prefetch}: expected 1 to {PREFETCH_MAX}")
    return prefetch


def checked_isolation(isolation: IsolationLevel) -> IsolationLevel:
    levels = get_args(IsolationLevel)
    if isolation not in levels:
        raise ValueError(f"isolation={isolation!r}: expected {' or '.join(levels)}")
    return isolation


def checked_name(argument: str, name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{argument}={name!r}: expected a name")
    return name


def _checked_id(message_id: Text) -> bytes:
    made = as_bytes("message_id", message_id) or b""
    if not 1 <= len(made) <= MESSAGE_ID_BYTES_MAX:
        raise ValueError(f"message_id of {len(made)} bytes: expected 1 to {MESSAGE_ID_BYTES_MAX}")
    return made
