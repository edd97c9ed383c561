"""The seal of gossip's packets: encrypted and authenticated with the cluster's key.

  byte 0      version of the protocol (1)
  byte 1      ENCRYPTED (2)
  16 bytes    the salt: random, drawn by the sender at each start of its process
  8 bytes     the number of the packet among those with this salt
  body        ChaCha20-Poly1305; its last 16 bytes are the tag, which also covers bytes 0 and 1

The key of a packet is derived from the cluster's key and the salt, and the packet's number is its nonce. So no two
packets have both in common, whichever nodes and runs they come from: a nonce that is used twice would reveal both
packets. A copied data folder, or a clock that was set back, changes nothing about that.

The version before did not encrypt. Its packets have byte 1 = TAGGED (1), a tag of 16 bytes (BLAKE2b with the cluster's
key over bytes 0 and 1 and the body), and the body as it is. A node still accepts them, and sends them to a node of
which it knows that it reads nothing else: it is connected, and its introduction does not say that it reads encrypted
packets. The next version will do neither. Without a key byte 1 is PLAIN (0), and nothing follows but the body.
"""

import hmac
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from penstock.swim.packets import SEAL_BYTES, Envelope, PacketError, decode_envelope, encode_envelope
from penstock.swim.values import PacketRefusal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

VERSION: Final = 1
PLAIN: Final = 0
TAGGED: Final = 1
ENCRYPTED: Final = 2

HEAD_BYTES: Final = 2
SALT_BYTES: Final = 16
NUMBER_BYTES: Final = 8
TAG_BYTES: Final = 16
"""Forging one takes 2^127 tries on average; a longer tag would cost space without a benefit."""
BODY_AT: Final = HEAD_BYTES + SALT_BYTES + NUMBER_BYTES
assert SEAL_BYTES == SALT_BYTES + NUMBER_BYTES + TAG_BYTES

MAX_SALTS = 4096
"""Ciphers of other processes that are kept, the last used at the end. Only those of valid packets are, so that a sender
without the key cannot fill the table; without its cipher a packet takes 10 µs longer."""

_NONCE_PAD: Final = bytes(12 - NUMBER_BYTES)
_INFO: Final = b"penstock gossip encrypted"


class Seal:
    """Seals and opens packets with the cluster's key, or without one. One per run of a node."""

    def __init__(self, key: bytes | None, salt: bytes = b"") -> None:
        """`salt`: random, and never used before with this key. It is not needed to open packets."""
        self._key = key
        # Derives a key of 32 bytes from a key of any length; other uses of the same key material derive other keys.
        self._tag_key = blake2b(key, digest_size=32, person=b"penstock gossip").digest() if key else b""
        self._salt = salt
        self._number = 0
        self._own: ChaCha20Poly1305 | None = None
        self._ciphers: dict[bytes, ChaCha20Poly1305] = {}

    def close(self, envelope: Envelope, *, tagged: bool = False) -> bytes:
        """`tagged`: for a node of the version before."""
        body = encode_envelope(envelope)
        if self._key is None:
            return bytes((VERSION, PLAIN)) + body
        if tagged:
            head = bytes((VERSION, TAGGED))
            return head + self._tag(head, body) + body
        return self._encrypted(self._key, body)

    def _encrypted(self, key: bytes, body: bytes) -> bytes:
        assert len(self._salt) == SALT_BYTES, "a node with a key needs a salt of its own"
        if self._own is None:
            self._own = _cipher(key, self._salt)
        head, number = bytes((VERSION, ENCRYPTED)), self._number.to_bytes(NUMBER_BYTES, "big")
        self._number += 1
        return head + self._salt + number + self._own.encrypt(_NONCE_PAD + number, body, head)

    def open(self, data: bytes, max_bytes: int) -> Envelope:
        """The envelope of a sender that has the key; else PacketError."""
        if not HEAD_BYTES <= len(data) <= max_bytes:
            raise PacketError(PacketRefusal.MALFORMED, f"a packet of {len(data)} bytes")
        if data[0] != VERSION:
            raise PacketError(PacketRefusal.VERSION, f"version {data[0]}, and this node has {VERSION}")
        return decode_envelope(self._checked_body(data))

    def _checked_body(self, data: bytes) -> bytes:
        if self._key is None:
            if data[1] != PLAIN:
                raise PacketError(PacketRefusal.KEY, "it is sealed, and this node has no cluster key")
            return data[HEAD_BYTES:]
        if data[1] == ENCRYPTED:
            return self._decrypted(self._key, data)
        head, tag, body = data[:HEAD_BYTES], data[HEAD_BYTES:][:TAG_BYTES], data[HEAD_BYTES + TAG_BYTES :]
        if head[1] != TAGGED or not hmac.compare_digest(tag, self._tag(head, body)):
            raise PacketError(PacketRefusal.KEY, "it was not sealed with this cluster's key")
        return body

    def _decrypted(self, key: bytes, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(data) < HEAD_BYTES + SEAL_BYTES:
            raise PacketError(PacketRefusal.MALFORMED, f"an encrypted packet of {len(data)} bytes")
        salt, number = data[HEAD_BYTES:][:SALT_BYTES], data[BODY_AT - NUMBER_BYTES : BODY_AT]
        cipher = self._ciphers.get(salt) or _cipher(key, salt)
        try:
            body = cipher.decrypt(_NONCE_PAD + number, data[BODY_AT:], data[:HEAD_BYTES])
        except InvalidTag:
            raise PacketError(PacketRefusal.KEY, "it was not sealed with this cluster's key") from None
        self._keep(salt, cipher)
        return body

    def _keep(self, salt: bytes, cipher: "ChaCha20Poly1305") -> None:
        self._ciphers.pop(salt, None)
        self._ciphers[salt] = cipher
        if len(self._ciphers) > MAX_SALTS:
            del self._ciphers[next(iter(self._ciphers))]

    def _tag(self, head: bytes, body: bytes) -> bytes:
        digest = blake2b(head, digest_size=TAG_BYTES, key=self._tag_key)
        digest.update(body)
        return digest.digest()


def _cipher(key: bytes, salt: bytes) -> "ChaCha20Poly1305":
    """With a key by HKDF (RFC 5869) with SHA-256: 32 bytes are one block of it."""
    from cryptography.hazmat.primitives.ciphers.aead import (
        ChaCha20Poly1305,  # 20 ms; only nodes with a key need it
    )

    extracted = hmac.digest(salt, key, "sha256")
    return ChaCha20Poly1305(hmac.digest(extracted, _INFO + b"\x01", "sha256"))
