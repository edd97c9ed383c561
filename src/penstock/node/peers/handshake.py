"""The handshake of two nodes: bytes in, bytes out, no socket.

    dialler                                     listener
    preamble ------------------------------->   checks: Penstock? a common version? a key on both sides or on none?
                <------------------------------ preamble
    the same checks
    introduction + proof ------------------->   checks: the right key? the same cluster? a free node id?
                <------------------------------ introduction + proof, or the same with a refusal in it
    the same checks
    ... frames ...                              ... frames ...

A preamble has 40 bytes in every version of the protocol, now and later, so that any two versions can at least recognise
each other:

    0   magic "PNST"        4   oldest version spoken, u8     5   newest, u8
    6   flags: 1 = keyed    7   0                             8   32 random bytes

Both sides then speak the newest version that both know. A node speaks the newest version and the one before it, so that
the nodes of a cluster can be updated one after the other. Version 1 is the exception: it was spoken before versions
were negotiated, and is refused.

The listener says nothing of itself before the dialler has proven that it holds the key. Each side tells the other why
it refuses (a preamble alone lets the other side come to the same conclusion), so both logs have the reason.
"""

from collections.abc import Callable

from penstock.errors import PenstockError, ProtocolViolation
from penstock.node.peers.frames import HEAD, INTRODUCTION, KIND_SIZE, LENGTH_SIZE, REFUSAL
from penstock.node.peers.hello import (
    ANY_NODE,
    HELLO_MAX_BYTES,
    Introduction,
    PeerHello,
    PeerRefusal,
    RefusalCode,
    decode_introduction,
    decode_refusal,
    encode,
)
from penstock.node.peers.seal import PROOF_SIZE, TAG_SIZE, FrameSeal, Role, is_proven, proof

MAGIC = b"PNST"
TLS_RECORD = b"\x16\x03"
"""The first bytes of a node that has `inter_node_tls`."""
NEWEST_VERSION = 2
FIRST_NEGOTIATED_VERSION = 2
OLDEST_VERSION = max(FIRST_NEGOTIATED_VERSION, NEWEST_VERSION - 1)
KEYED = 1
NONCE_SIZE = 32
PREAMBLE_SIZE = 8 + NONCE_SIZE

_ROLES: tuple[Role, Role] = (b"listens", b"dials")

Judge = Callable[[Introduction], PeerRefusal | None]


class PeerRefused(PenstockError):
    """The handshake is over and failed. `farewell` is still to be sent."""

    def __init__(
        self, refusal: PeerRefusal, *, ours: bool, hello: PeerHello | None = None, farewell: bytes = b""
    ) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.ours = ours
        """Whether this side said no."""
        self.hello = hello
        self.farewell = farewell


class Handshake:
    """The beginning of one connection. Feed it the bytes that come until `hello` is set, and send the bytes that it
    returns."""

    def __init__(
        self,
        *,
        dials: bool,
        me: PeerHello,
        key: bytes | None,
        nonce: bytes,
        judge: Judge,
        expects: int = ANY_NODE,
        versions: tuple[int, int] = (OLDEST_VERSION, NEWEST_VERSION),
    ) -> None:
        self._dials = dials
        self._me = me
        self._key = key
        self._judge = judge
        self._expects = expects
        self._versions = versions
        self._mine = MAGIC + bytes([*versions, KEYED if key is not None else 0, 0]) + nonce
        self._preambles = b""
        """Both preambles, the dialler's first; empty until the other side's has come."""
        self._arrived = bytearray()
        self.hello: PeerHello | None = None
        """The other node, once it is accepted here."""
        self.version = 0
        """The negotiated version of the protocol, once both preambles are here."""

    @property
    def over(self) -> bool:
        return self.hello is not None

    def opening(self) -> bytes:
        """The bytes to send before any have come."""
        return self._mine if self._dials else b""

    def feed(self, data: bytes | memoryview) -> bytes:
        """Raises PeerRefused when it is over without success."""
        self._arrived += data
        try:
            answer = b"" if self._preambles else self._read_preamble()
            return answer + self._read_frame() if self._preambles else answer
        except ProtocolViolation as violation:
            raise self._refused(RefusalCode.MALFORMED, str(violation)) from None

    def rest(self) -> bytes:
        """The bytes that came behind the handshake: the first frames."""
        return bytes(self._arrived)

    def seals(self) -> tuple[FrameSeal, FrameSeal] | None:
        """The seals of the frames that go out and of those that come in; None without a key."""
        if self._key is None:
            return None
        mine, theirs = _ROLES[self._dials], _ROLES[not self._dials]
        return FrameSeal(self._key, mine, self._preambles), FrameSeal(self._key, theirs, self._preambles)

    # --- preambles

    def _read_preamble(self) -> bytes:
        arrived = bytes(self._arrived[:PREAMBLE_SIZE])
        if not arrived.startswith(MAGIC[: len(arrived)]):
            # It is not answered: it would not understand the answer.
            reason = f"not Penstock's inter-node protocol; it began with {arrived[:16]!r}"
            if arrived.startswith(TLS_RECORD):
                reason = "it speaks TLS, and this node has no inter_node_tls: give all nodes the same setting"
            raise PeerRefused(PeerRefusal(RefusalCode.MALFORMED, reason), ours=True)
        if len(arrived) < PREAMBLE_SIZE:
            return b""
        del self._arrived[:PREAMBLE_SIZE]
        self._check_version(arrived[4], arrived[5])
        self._check_keyed(bool(arrived[6] & KEYED))
        self._preambles = self._mine + arrived if self._dials else arrived + self._mine
        return self._introduction() if self._dials else self._mine

    def _check_version(self, oldest: int, newest: int) -> None:
        self.version = min(newest, self._versions[1])
        if self.version < max(oldest, self._versions[0]):
            raise self._seen_by_both(RefusalCode.VERSION, _version_refusal((oldest, newest), self._versions))

    def _check_keyed(self, theirs: bool) -> None:
        if theirs and self._key is None:
            raise self._seen_by_both(
                RefusalCode.KEY,
                "it has a cluster key and this node has none: give it one (--cluster-key-file)",
            )
        if not theirs and self._key is not None:
            raise self._seen_by_both(
                RefusalCode.KEY,
                "it has no cluster key and this node has one: start it with the same --cluster-key-file",
            )

    def _seen_by_both(self, code: RefusalCode, reason: str) -> PeerRefused:
        """The other side needs only the preamble to come to the same conclusion."""
        return PeerRefused(PeerRefusal(code, reason), ours=True, farewell=b"" if self._dials else self._mine)

    # --- introductions

    def _introduction(self, refusal: PeerRefusal | None = None) -> bytes:
        body = encode(Introduction(self._me, self._expects, refusal))
        if self._key is not None:
            body = proof(self._key, _ROLES[self._dials], self._preambles, body) + body
        return frame(INTRODUCTION, body)

    def _read_frame(self) -> bytes:
        arrived = self._arrived
        if len(arrived) < LENGTH_SIZE:
            return b""
        length = int.from_bytes(arrived[:LENGTH_SIZE], "big")
        if not 0 < length <= HELLO_MAX_BYTES:
            raise ProtocolViolation(f"an introduction of {length} bytes: expected 1 to {HELLO_MAX_BYTES}")
        end = LENGTH_SIZE + length
        if len(arrived) < end:
            return b""
        kind, body = arrived[LENGTH_SIZE], bytes(arrived[LENGTH_SIZE + KIND_SIZE : end])
        del arrived[:end]
        if kind == REFUSAL:
            raise PeerRefused(decode_refusal(body), ours=False)
        if kind != INTRODUCTION:
            raise ProtocolViolation(f"a frame of kind {kind} before an introduction")
        return self._met(self._proven(body))

    def _proven(self, body: bytes) -> Introduction:
        if self._key is None:
            return decode_introduction(body)
        claimed, body = body[:PROOF_SIZE], body[PROOF_SIZE:]
        if not is_proven(self._key, _ROLES[not self._dials], self._preambles, body, claimed):
            raise self._refused(
                RefusalCode.KEY, "the cluster keys differ: every node needs the same --cluster-key-file"
            )
        return decode_introduction(body)

    def _met(self, introduction: Introduction) -> bytes:
        if introduction.refusal is not None:
            raise PeerRefused(introduction.refusal, ours=False, hello=introduction.hello)
        refusal = self._judge(introduction)
        if refusal is not None:
            farewell = self._sealed_refusal(refusal) if self._dials else self._introduction(refusal)
            raise PeerRefused(refusal, ours=True, hello=introduction.hello, farewell=farewell)
        self.hello = introduction.hello
        return b"" if self._dials else self._introduction()

    def _sealed_refusal(self, refusal: PeerRefusal) -> bytes:
        """The refusal as a frame, for a listener that has accepted already and expects frames."""
        body = encode(refusal)
        seals = self.seals()
        if seals is None:
            return frame(REFUSAL, body)
        head = HEAD.pack(KIND_SIZE + len(body) + TAG_SIZE, REFUSAL)
        return head + body + seals[0].tag(head, (body,))

    def _refused(self, code: RefusalCode, reason: str) -> PeerRefused:
        refusal = PeerRefusal(code, reason)
        return PeerRefused(refusal, ours=True, farewell=frame(REFUSAL, encode(refusal)))


def _version_refusal(theirs: tuple[int, int], ours: tuple[int, int]) -> str:
    told = f"it speaks {_shown(theirs)} of the inter-node protocol, this node {_shown(ours)}"
    if theirs[1] < FIRST_NEGOTIATED_VERSION:
        return (
            f"{told}: its Penstock is too old to run beside this one; stop all nodes of the cluster, update "
            "Penstock on each, and start them again"
        )
    if theirs[1] < ours[0]:
        return f"{told}: update Penstock on that node"
    return f"{told}: update Penstock on this node"


def _shown(versions: tuple[int, int]) -> str:
    oldest, newest = versions
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def frame(kind: int, body: bytes) -> bytes:
    """A whole frame without a tag."""
    return HEAD.pack(KIND_SIZE + len(body), kind) + body
