"""Suggestions for mistyped names."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint to append to an error, when some known name is close to a mistyped one."""
    from difflib import get_close_matches  # for a mistake only

    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""
