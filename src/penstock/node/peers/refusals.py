"""Who refuses this node, why, and when that is the end of it.

A node that nobody has let in yet dials on and on, because most refusals pass: a key is mended on the other side, a
version is updated, a connection that outlived a lost machine falls silent. Two do not pass by themselves:

1. The node's id is taken by a node that is there. One that knows says so for `patience_s`, which is longer than any
   connection to a machine that is gone is held for alive (`peer_silence_ms`).
2. The node is of another cluster: every address that it was given says so, for as long. One odd address among others
   that merely do not answer proves nothing.

Such a node ends and says what to do; otherwise it would wait for ever, and its person with it. Nothing is final for a
node that has been let in once since it was started (it serves, and one odd peer must not end it), and nothing that was
not said by one who has proven to hold the cluster key (`hello` of `Refused`).
"""

from collections.abc import Iterable

import msgspec

from penstock.config import Address
from penstock.node.peers.handshake import Refused
from penstock.node.peers.hello import RefusalCode

FRESH_SECONDS = 15.0
"""A refusal that is older was not repeated: several attempts, with a connect timeout each, fit in between."""
LEAST_PATIENCE_SECONDS = 15.0
SILENCES = 3
"""Of `peer_silence_ms`, in which a node that lost its machine and came back may be taken for its own double."""


class Final(msgspec.Struct, frozen=True):
    """Why this node will not be let in, and what to do about it."""

    reason: str
    hint: str


class _Heard(msgspec.Struct, frozen=True):
    since: float
    last: float
    code: int
    reason: str
    proven: bool


_HINTS = {
    RefusalCode.DUPLICATE_ID: (
        "stop the other process if it is the wrong one; else start this one with a --node-id and an empty "
        "--data-dir of its own"
    ),
    RefusalCode.CLUSTER: (
        "give it --seeds of its own cluster; or, to let it join this one, an empty --data-dir"
    ),
}


class Refusals:
    """What the dialled addresses say, until one lets this node in. Times in seconds of the caller's clock."""

    def __init__(self, *, silence_ms: int) -> None:
        self._patience_s = max(LEAST_PATIENCE_SECONDS, SILENCES * silence_ms / 1000)
        self._heard: dict[Address, _Heard] = {}
        self._was_let_in = False

    def let_in(self) -> None:
        self._was_let_in = True
        self._heard.clear()

    def heard(self, now: float, address: Address, refused: Refused) -> None:
        if self._was_let_in:
            return
        code, proven = refused.refusal.code, refused.hello is not None
        before = self._heard.get(address)
        lasts = before is not None and (before.code, before.proven) == (code, proven)
        since = before.since if before is not None and lasts and now - before.last < FRESH_SECONDS else now
        self._heard[address] = _Heard(since, now, code, str(refused.refusal), proven)

    def word(self, now: float) -> str | None:
        """The last refusal, while it is fresh."""
        address, heard = max(self._heard.items(), key=lambda one: one[1].last, default=(None, None))
        if heard is None or now - heard.last >= FRESH_SECONDS:
            return None
        return f"{address} answers, but {heard.reason}"

    def final(self, now: float, addresses: Iterable[Address]) -> Final | None:
        """`addresses`: all that this node was given, its own left out."""
        lasting = {
            address: heard
            for address, heard in self._heard.items()
            if heard.proven
            and now - heard.last < FRESH_SECONDS
            and heard.last - heard.since >= self._patience_s
        }
        for address, heard in lasting.items():
            if heard.code == RefusalCode.DUPLICATE_ID:
                return _final(address, heard)
        foreign = [
            (address, heard) for address, heard in lasting.items() if heard.code == RefusalCode.CLUSTER
        ]
        if foreign and {address for address, _ in foreign} >= {*addresses, *self._heard}:
            return _final(*foreign[0])
        return None


def _final(address: Address, heard: _Heard) -> Final:
    return Final(f"{address} does not let this node in: {heard.reason}", _HINTS[RefusalCode(heard.code)])
