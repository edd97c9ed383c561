"""Refusals of this node by others: which ones are final, so that the process ends.

A node that no other node has admitted yet keeps dialling, because most refusals pass: an operator corrects a key or
updates a version, or a connection that outlived a lost machine falls silent. Two refusals do not pass by themselves:

1. The node's id is taken by another running node. A node that knows this refuses for the whole confirmation time, which
   is longer than a connection to a lost machine can stay open (`peer_silence_ms`).
2. The node is of another cluster: every address that it was given refuses it for this reason, for as long. One such
   address among others that merely do not answer proves nothing.

Such a node ends and says what to do; otherwise it would wait for ever. No refusal is final for a node that has been
admitted once since it was started (it serves, and one wrong peer must not end it), nor a refusal by a node that has not
proven that it holds the cluster key (`hello` of `PeerRefused`).
"""

from collections.abc import Iterable

import msgspec

from penstock.config import Address
from penstock.node.peers.handshake import PeerRefused
from penstock.node.peers.hello import RefusalCode

FRESH_SECONDS = 15.0
"""A refusal that is older was not repeated: several attempts, with a connect timeout each, fit in between."""
SHORTEST_CONFIRMATION_SECONDS = 15.0
SILENCES = 3
"""Multiples of `peer_silence_ms`: within this time a node that lost its machine and came back may be mistaken for a
second node of its id."""


class Final(msgspec.Struct, frozen=True):
    """Why this node will not be admitted, and what to do about it."""

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
    """The refusals of the dialled addresses, until one admits this node. Times in seconds of the caller's clock."""

    def __init__(self, *, silence_ms: int) -> None:
        self._confirmation_s = max(SHORTEST_CONFIRMATION_SECONDS, SILENCES * silence_ms / 1000)
        self._heard: dict[Address, _Heard] = {}
        self._was_let_in = False

    def let_in(self) -> None:
        self._was_let_in = True
        self._heard.clear()

    def heard(self, now: float, address: Address, refused: PeerRefused) -> None:
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
            and heard.last - heard.since >= self._confirmation_s
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
    return Final(f"{address} does not admit this node: {heard.reason}", _HINTS[RefusalCode(heard.code)])
