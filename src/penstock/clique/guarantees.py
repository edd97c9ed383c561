"""Which guarantee a clique has on a carrier, by the carrier's capabilities.

    best-effort     a key usually has the same owner; while workers see different views, two may run handlers for it
    one-owner       no handler starts for a key while another worker's runs. Messages in a process that crashes are lost
    at-least-once   as well: a message is acknowledged after its handler has returned, and a crashed worker loses none
    durable         as well: messages survive the crash of the carrier, and wait while no worker runs

The last two need the carrier: if it has forgotten a message, no worker can bring it back.

Handlers of a key run in the order in which a publisher has published its messages, if the carrier is ordered. On
carriers that forward there is one exception: a worker that crashes or is cut off from the others may hold an earlier
message of a key whose later ones go on without it."""

from collections.abc import Callable
from typing import Final, Literal, get_args

import msgspec

from penstock.clique.errors import TooWeak
from penstock.clique.pubsub import Capabilities

Level = Literal["best-effort", "one-owner", "at-least-once", "durable"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

_NEEDS: Final[dict[Level, tuple[str, Callable[[Capabilities], bool]]]] = {
    "best-effort": ("", lambda has: True),
    "one-owner": (
        "compare-and-set (or exclusive assignment)",
        lambda has: has.compare_and_set or has.exclusive,
    ),
    "at-least-once": ("acks", lambda has: has.acks),
    "durable": ("durable messages", lambda has: has.durable),
}
"""The capability that each level needs in addition to those of the weaker levels."""

_SENTENCES: Final[dict[Level, tuple[str, ...]]] = {
    "best-effort": (
        "affinity by best effort: while workers see different views, two may handle the same key",
    ),
    "one-owner": ("one owner at a time", "messages in a crashed process may be lost"),
    "at-least-once": ("one owner at a time", "at least once", "survives crashes of workers"),
    "durable": ("one owner at a time", "at least once", "survives crashes of workers and of the carrier"),
}


class Guarantee(msgspec.Struct, frozen=True):
    """What holds for the handlers of a clique. str(guarantee) is a sentence."""

    level: Level
    in_order: bool
    """Handlers of a key run in the order in which a publisher has published its messages."""

    def __str__(self) -> str:
        first, *others = _SENTENCES[self.level]
        order = ["in order per key"] if self.in_order and others else []
        return ", ".join([first, *order, *others])


def guarantee_of(capabilities: Capabilities) -> Guarantee:
    """The strongest guarantee that a carrier can give."""
    possible = [level for level in LEVELS if not _missing(level, capabilities)]
    return Guarantee(possible[-1], capabilities.ordered and len(possible) > 1)


def check_level(wanted: str | None) -> Level | None:
    """Raises ValueError if there is no such level."""
    for level in LEVELS:
        if level == wanted:
            return level
    if wanted is not None:
        raise ValueError(f"guarantee={wanted!r}: expected one of {', '.join(LEVELS)}, or None for any")
    return None


def check_guarantee(wanted: Level, capabilities: Capabilities, carrier: str) -> None:
    """Raises TooWeak, which says what the carrier lacks."""
    missing = _missing(wanted, capabilities)
    if missing:
        raise TooWeak(
            f"guarantee={wanted!r}: {carrier} lacks {' and '.join(missing)}. "
            f"It gives: {guarantee_of(capabilities)}"
        )


def _missing(wanted: Level, capabilities: Capabilities) -> list[str]:
    needed = [_NEEDS[level] for level in LEVELS[: LEVELS.index(wanted) + 1]]
    return [name for name, is_there in needed if not is_there(capabilities)]
