"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server's side and the client's.

    state    message         checked                                         next
    FIRST    client-first    user, nonce, no channel binding                 FINAL, with the challenge
    FINAL    client-final    c= is the GS2 header that began the exchange,   OVER, with the server's signature
                             r= ends with both nonces, p= proves it

The proof is ClientKey XOR HMAC(StoredKey, AuthMessage); the server undoes the XOR and hashes: only the right password
gives StoredKey. AuthMessage is all messages before the proof, so that nothing in them can be changed on the way.

An unknown user goes through the same states with a decoy (`credentials.py`), at the same cost: the decoy is computed
for existing users too.
"""

import hmac

from penstock.security.credentials import (
    MIN_ITERATIONS,
    Credentials,
    Decoys,
    ScramCredential,
    ScramMechanism,
    hash_of,
    hmac_of,
    salted_password,
)
from penstock.security.errors import AuthenticationError, MalformedMessage
from penstock.security.exchange import Accepted, Challenge, State, TableExchange
from penstock.security.principals import is_login_name, user
from penstock.security.saslprep import saslprep
from penstock.security.scram_messages import (
    ClientFirst,
    decode_base64,
    decode_text,
    encode_base64,
    encode_name,
    parse_client_final,
    parse_client_first,
    parse_server_first,
)

MAX_CLIENT_ITERATIONS = 1_000_000
"""A server that asks for more would keep this process busy for a second at each login."""


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _auth_message(first_bare: str, challenge: str, without_proof: str) -> bytes:
    return f"{first_bare},{challenge},{without_proof}".encode()


class ScramServer(TableExchange):
    """One login of a client. `nonce` is random, printable, without a comma, and used once."""

    __slots__ = (
        "_challenge",
        "_credential",
        "_decoys",
        "_first",
        "_lookup",
        "_mechanism",
        "_nonce",
        "_unknown",
    )

    _first: ClientFirst
    _challenge: str
    _credential: ScramCredential

    def __init__(self, mechanism: ScramMechanism, lookup: Credentials, decoys: Decoys, nonce: str) -> None:
        super().__init__({State.FIRST: self._on_first, State.FINAL: self._on_final})
        self._mechanism = mechanism
        self._lookup = lookup
        self._decoys = decoys
        self._nonce = nonce
        self._unknown = False

    def _on_first(self, data: bytes) -> tuple[Challenge, State]:
        first = parse_client_first(data)
        if first.authzid not in ("", first.user):
            raise AuthenticationError("a client asks to act as another user than it logs in as")
        decoy = self._decoys.credential(first.user, self._mechanism)
        found = self._lookup(first.user, self._mechanism) if is_login_name(first.user) else None
        credential = found or decoy
        self._unknown = found is None
        self._first, self._credential = first, credential
        salt = encode_base64(credential.salt)
        self._challenge = f"r={first.nonce}{self._nonce},s={salt},i={credential.iterations}"
        return Challenge(self._challenge.encode()), State.FINAL

    def _on_final(self, data: bytes) -> tuple[Accepted, State]:
        final = parse_client_final(data)
        if final.channel != self._first.gs2_header.encode():
            raise MalformedMessage("c= does not fit the client's first message")
        # As in Kafka, the end decides: librdkafka before 2.10 sends its own nonce twice. It is fresh all the same, and
        # the proof covers it as it was sent.
        if not final.nonce.endswith(f"{self._first.nonce}{self._nonce}"):
            raise MalformedMessage("the nonce is not the one of this exchange")
        message = _auth_message(self._first.bare, self._challenge, final.without_proof)
        proved = self._is_proved(final.proof, message)
        if self._unknown:
            raise AuthenticationError("there is no such user, or none with a password for this mechanism")
        if not proved:
            raise AuthenticationError(f"wrong password for {user(self._first.user)}")
        signature = encode_base64(hmac_of(self._credential.server_key, message, self._mechanism))
        return Accepted(f"v={signature}".encode(), user(self._first.user)), State.OVER

    def _is_proved(self, proof: bytes, message: bytes) -> bool:
        if len(proof) != self._mechanism.key_bytes:
            return False
        signature = hmac_of(self._credential.stored_key, message, self._mechanism)
        key = hash_of(_xor(proof, signature), self._mechanism)
        return hmac.compare_digest(key, self._credential.stored_key)


class ScramClient:
    """The client's side of one login: `first`, `final`, `verify`, in this order.

    AuthenticationError if the server does not speak SCRAM, or does not know the password either.
    """

    __slots__ = ("_bare", "_mechanism", "_nonce", "_password", "_signature")

    def __init__(self, mechanism: ScramMechanism, user_name: str, password: str, nonce: str) -> None:
        """`nonce` is random, printable, without a comma, and used once. ValueError: SASLprep refuses the name."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={encode_name(saslprep(user_name))},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof for the server's challenge."""
        parsed = parse_server_first(challenge)
        if not parsed.nonce.startswith(self._nonce) or parsed.nonce == self._nonce:
            raise AuthenticationError("the server's nonce does not continue the client's")
        if not MIN_ITERATIONS <= parsed.iterations <= MAX_CLIENT_ITERATIONS:
            raise AuthenticationError(
                f"the server asks for {parsed.iterations} iterations, not {MIN_ITERATIONS} to {MAX_CLIENT_ITERATIONS}"
            )
        without_proof = f"c={encode_base64(b'n,,')},r={parsed.nonce}"
        salted = salted_password(self._password, parsed.salt, parsed.iterations, self._mechanism)
        message = _auth_message(self._bare, decode_text(challenge), without_proof)
        return f"{without_proof},p={encode_base64(self._proof(salted, message))}".encode()

    def _proof(self, salted: bytes, message: bytes) -> bytes:
        server_key = hmac_of(salted, b"Server Key", self._mechanism)
        self._signature = hmac_of(server_key, message, self._mechanism)
        client_key = hmac_of(salted, b"Client Key", self._mechanism)
        stored_key = hash_of(client_key, self._mechanism)
        return _xor(client_key, hmac_of(stored_key, message, self._mechanism))

    def verify(self, data: bytes) -> None:
        """Checks the server's last message: a server without the password's keys cannot sign."""
        text = decode_text(data)
        if text.startswith("e="):
            raise AuthenticationError(f"the server refuses the login: {text[2:100]!r}")
        signature = decode_base64(text.partition(",")[0], "v")
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise AuthenticationError("the server did not prove that it knows the password")
