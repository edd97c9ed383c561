"""How a subscription is stored between connections: in the metadata of each committed offset of the group of its name.

    penstock-subscription ttl=604800000 done=3+5,1+2

`ttl` is the TTL of the subscription, in milliseconds. `done` lists ranges above the committed offset that need not be
sent again: for each, how many offsets before it are not done, and how many in it are. Such ranges exist because of
messages that are not due yet: the committed offset stays at the first of them, and messages behind it that were acked
should not be sent twice.

Kafka limits the metadata of a committed offset. Ranges that do not fit are left out, the highest first: their messages
are sent once more, which is allowed (at least once).
"""

import re
from collections.abc import Iterable, Iterator

from penstock.queue.subscription_ranges import Range

PREFIX = "penstock-subscription"

_FORM = re.compile(rf"{PREFIX} ttl=([0-9]{{1,18}})(?: done=([0-9+,]*))?")
_RANGE = re.compile(r"([0-9]{1,18})\+([0-9]{1,18})")


def encode_metadata(ttl_ms: int, first_undone: int, done: Iterable[Range], max_bytes: int) -> str:
    """Empty if not even the prefix and the TTL fit."""
    text = f"{PREFIX} ttl={ttl_ms}"
    if len(text) > max_bytes:
        return ""
    left = max_bytes - len(text) - len(" done=")
    parts = []
    at = first_undone
    for first, end in done:
        part = f"{first - at}+{end - first}"
        left -= len(part) + 1
        if left < 0:
            break
        parts.append(part)
        at = end
    return f"{text} done={','.join(parts)}" if parts else text


def is_subscription(text: str) -> bool:
    return text.startswith(PREFIX)


def decode_ttl(text: str) -> int | None:
    """The subscription's TTL; None if the metadata is not a subscription's."""
    found = _FORM.fullmatch(text)
    return int(found.group(1)) if found else None


def decode_done(first_undone: int, text: str) -> list[Range]:
    """The ranges; none if the metadata is not a subscription's."""
    found = _FORM.fullmatch(text)
    return list(_ranges(first_undone, found.group(2))) if found and found.group(2) else []


def _ranges(first_undone: int, text: str) -> Iterator[Range]:
    at = first_undone
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            return
        first = at + int(found.group(1))
        at = first + int(found.group(2))
        yield first, at
