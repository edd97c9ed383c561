"""Names of cliques, workers and streams: the same on every carrier, so that a program can change its carrier."""

import re
from typing import Final

from penstock.clique.limits import NAME_CHARS_MAX

DEFAULT_CLIQUE: Final = "default"

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


def checked_clique(name: str) -> str:
    return _checked("name", name)


def checked_worker(name: str) -> str:
    return _checked("worker", name)


def checked_stream(name: str) -> str:
    return _checked("stream", name)


def _checked(argument: str, name: str) -> str:
    """Letters that topics of Kafka, subjects of NATS and URLs take alike."""
    if not isinstance(name, str):
        raise TypeError(f"{argument}={name!r}: expected text")
    if not (len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name)) or ".." in name or name.endswith("."):
        raise ValueError(
            f"{argument}={name!r:.300}: expected 1 to {NAME_CHARS_MAX} of a-z, A-Z, 0-9, '.', '_' and '-', with dots "
            "only between other letters"
        )
    return name
