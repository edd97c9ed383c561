"""Call chains: a handler that requests something, whose responder requests something else, and so on.

One handler of a key runs at a time. A handler that asks the owner of its own key, directly or in a circle over other
keys, would wait for itself. So every handler has a chain, the requests that it sends carry it, and a request enters a
key at once if a handler of the same chain runs for that key: that handler waits for it and does nothing meanwhile."""

import itertools
import secrets
from contextvars import ContextVar
from typing import Final, NamedTuple

from penstock.clique.errors import OverLimit
from penstock.clique.limits import CHAIN_DEPTH_MAX

CHAIN_HEADER: Final = "penstock-clique-chain"


class Chain(NamedTuple):
    """`depth` counts the requests that led here: 0 in the handler of a message."""

    chain_id: str
    depth: int

    def __str__(self) -> str:
        return f"{self.chain_id}/{self.depth}"

    @classmethod
    def parse(cls, text: str | None) -> "Chain | None":
        """None if it is missing or makes no sense: then a new chain begins."""
        chain_id, separator, depth = (text or "").partition("/")
        if not (separator and chain_id and depth.isascii() and depth.isdigit()):
            return None
        return cls(chain_id, int(depth))

    def next(self) -> "Chain":
        """The chain of a request from here. Raises OverLimit for an endless recursion."""
        if self.depth >= CHAIN_DEPTH_MAX:
            raise OverLimit(
                f"a request from inside a request, {self.depth + 1} deep: the limit is {CHAIN_DEPTH_MAX} "
                "(limits.CHAIN_DEPTH_MAX). Do these handlers ask each other for ever?"
            )
        return Chain(self.chain_id, self.depth + 1)


_current: ContextVar[Chain | None] = ContextVar("penstock-clique-chain", default=None)


class ChainNumbers:
    """The chains of the handlers of one worker: one for each message, so they are counted and not random."""

    def __init__(self) -> None:
        self._worker = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def next(self) -> Chain:
        return Chain(f"{self._worker}.{next(self._numbers)}", 0)


def enter_chain(chain: Chain | None) -> None:
    """In the task that runs the handler."""
    _current.set(chain)


def chain_of_request() -> Chain | None:
    """For a request that is sent from here; None if that is not inside a handler."""
    current = _current.get()
    return None if current is None else current.next()
