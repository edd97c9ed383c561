"""Names of cliques, workers and streams, as arguments."""

from typing import Final

from penstock.ring.names import NAME_RULE, is_name

DEFAULT_CLIQUE: Final = "default"


def checked_clique(name: str) -> str:
    return _checked("name", name)


def checked_worker(name: str) -> str:
    return _checked("worker", name)


def checked_stream(name: str) -> str:
    return _checked("stream", name)


def _checked(argument: str, name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument}={name!r}: expected text")
    if not is_name(name):
        raise ValueError(f"{argument}={name!r:.300}: expected {NAME_RULE}")
    return name
