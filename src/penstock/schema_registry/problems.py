"""Errors of schemas and of values, and how their texts show data: one printable line of bounded length."""

from typing import Final

from penstock.errors import PenstockError

# A reason travels as a record header to the dead-letter topic and into log lines: one sentence, never the payload.
MAX_REASON_CHARS: Final = 300
MAX_SHOWN_CHARS: Final = 40


class PayloadError(PenstockError):
    """A payload option, schema or sample that cannot work: names it, what was found and what was expected."""


class BadValue(Exception):
    """This record does not fit; the text is the reason that its reader will see."""


def clip(text: str, limit: int = MAX_REASON_CHARS) -> str:
    """At most `limit` characters of `text`, on one line and printable."""
    head = text[: limit + 1].replace("\n", " ").replace("\r", " ")
    head = "".join(c if c.isprintable() else "?" for c in head)
    return head if len(head) <= limit else head[: limit - 3] + "..."


def shown(value: object) -> str:
    """The beginning of a value, for the text of an error."""
    if isinstance(value, bytes):
        return clip(repr(value[:MAX_SHOWN_CHARS]), MAX_SHOWN_CHARS)
    return clip(str(value)[: 2 * MAX_SHOWN_CHARS], MAX_SHOWN_CHARS)
