"""Authentication with the cluster key: of the nodes that connect, and of each frame that they send afterwards.

The key is a secret that every node of a cluster has. It never travels. From it come, per connection:

* two *proofs*, one from each side: HMAC-SHA-256 over the side's role, both preambles (each holds 32 fresh random bytes)
  and the side's own introduction. A recorded proof is worth nothing against another nonce, and a proof sent back to its
  author is of the wrong role.
* two *frame keys*, one per direction: HMAC-SHA-256 over the role and both preambles.

Each frame then ends with a keyed BLAKE2b of 16 bytes over the number of the frame in its direction, its head and its
body. A frame that was changed, left out, repeated, moved or sent back has the wrong tag, and the connection ends.

This authenticates; it does not encrypt. TLS below it does (`encryption.py`).
"""

import hmac
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

Role = Literal[b"dials", b"listens"]

TAG_SIZE = 16
PROOF_SIZE = 32

_PROOF = b"penstock proof "
_FRAMES = b"penstock frames "


def proof(key: bytes, role: Role, preambles: bytes, introduction: bytes) -> bytes:
    """Bytes that only a holder of the key can compute. `preambles`: the dialler's, then the listener's, both of
    fixed length."""
    return hmac.digest(key, _PROOF + role + preambles + introduction, "sha256")


def is_proven(key: bytes, role: Role, preambles: bytes, introduction: bytes, claimed: bytes) -> bool:
    return hmac.compare_digest(proof(key, role, preambles, introduction), claimed)


class FrameSeal:
    """Tags for the frames of one direction. Both ends hold one each, and they count alike."""

    __slots__ = ("_frames", "_keyed")

    def __init__(self, key: bytes, sender: Role, preambles: bytes) -> None:
        frame_key = hmac.digest(key, _FRAMES + sender + preambles, "sha256")
        # Copied for each frame: setting up a keyed hash costs more than hashing a small frame.
        self._keyed = blake2b(key=frame_key, digest_size=TAG_SIZE)
        self._frames = 0

    def tag(self, head: bytes, pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """The tag of the next frame."""
        hashed = self._keyed.copy()
        hashed.update(self._frames.to_bytes(8, "big") + head)
        for piece in pieces:
            hashed.update(piece)
        self._frames += 1
        return hashed.digest()

    def is_next(self, head: bytes, body: memoryview, claimed: memoryview) -> bool:
        """Whether this is the next frame, as the other end sent it."""
        return hmac.compare_digest(self.tag(head, (body,)), claimed)
