"""How a subscription is kept between connections: in the text beside each committed offset of the group of its name.

    penstock-subscription ttl=604800000 done=3+5,1+2

`ttl` is the subscription's own, in milliseconds. `done` are ranges above the committed offset that need not be sent
again: after how many offsets that are not done, and how many that are. They come from messages that are not due yet:
the committed offset waits for the first of them, and what was acked behind it should not come twice.

Kafka keeps a committed offset's text up to a limit. Ranges that do not fit are left out from the far end: they will be
sent once more, which acks are for.
"""

import re
from collections.abc import Iterable, Iterator

from penstock.queue.subscription_ranges import Range

MARK = "penstock-subscription"

_FORM = re.compile(rf"{MARK} ttl=([0-9]{{1,18}})(?: done=([0-9+,]*))?")
_RANGE = re.compile(r"([0-9]{1,18})\+([0-9]{1,18})")


def encode_mark(ttl_ms: int, floor: int, done: Iterable[Range], max_bytes: int) -> str:
    """Empty if not even the mark fits."""
    text = f"{MARK} ttl={ttl_ms}"
    if len(text) > max_bytes:
        return ""
    room = max_bytes - len(text) - len(" done=")
    parts = []
    at = floor
    for first, end in done:
        part = f"{first - at}+{end - first}"
        room -= len(part) + 1
        if room < 0:
            break
        parts.append(part)
        at = end
    return f"{text} done={','.join(parts)}" if parts else text


def is_mark(text: str) -> bool:
    return text.startswith(MARK)


def decode_ttl(text: str) -> int | None:
    """The subscription's TTL; None if the text is anybody else's."""
    found = _FORM.fullmatch(text)
    return int(found.group(1)) if found else None


def decode_done(floor: int, text: str) -> list[Range]:
    """The ranges; none if the text is anybody else's."""
    found = _FORM.fullmatch(text)
    return list(_ranges(floor, found.group(2))) if found and found.group(2) else []


def _ranges(floor: int, text: str) -> Iterator[Range]:
    at = floor
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            return
        first = at + int(found.group(1))
        at = first + int(found.group(2))
        yield first, at
