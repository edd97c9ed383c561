"""SCRAM credentials (RFC 5802): what a server keeps of a password, and how a password is checked against it.

    SaltedPassword = PBKDF2(HMAC, saslprep(password), salt, iterations)
    StoredKey      = H(HMAC(SaltedPassword, "Client Key"))      proves that a client knows the password
    ServerKey      = HMAC(SaltedPassword, "Server Key")         proves to the client that the server knows it too

These are not enough to log in, and guessing a password costs `iterations` hashes per guess.

A user that does not exist gets a *decoy*: a credential made from the user's name and a secret of the cluster. The
exchange then runs to its end as with a wrong password. The decoy of a name is always the same, because a salt that
changes from try to try would tell. A decoy can only look like most credentials do: where users have salts of another
length or another number of iterations than the Decoys say, these users can be told from decoys.
"""

import hashlib
import hmac
from collections.abc import Callable
from enum import IntEnum

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.security.saslprep import saslprep

MIN_ITERATIONS = 4_096
"""RFC 7677's lower bound, and Kafka's."""
MAX_ITERATIONS = 16_384
"""Kafka's upper bound. A client computes as many hashes at each login, and so does this node for PLAIN: 10 ms."""
DEFAULT_ITERATIONS = 4_096
"""Kafka's default."""
SALT_BYTES = 16
"""The length of salts that Penstock makes."""
MIN_SALT_BYTES = 8
"""Below, tables of hashed passwords could be prepared."""
MAX_SALT_BYTES = 64
"""Java's clients make salts of about 26 bytes."""


class ScramMechanism(IntEnum):
    """The SCRAM mechanisms, with Kafka's numbers."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name in SASL: `SCRAM-SHA-256`."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The name in hashlib."""
        return _HASHES[self]

    @property
    def key_bytes(self) -> int:
        """The length of a stored key, a server key and a proof."""
        return hashlib.new(self.hash_name).digest_size


_HASHES = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}

SCRAM_MECHANISMS = tuple(_HASHES)


class ScramCredential(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of one password for one mechanism. Its form as a msgpack array is stored."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Without keys: a ServerKey lets its owner pose as the server."""
        return f"ScramCredential(iterations={self.iterations})"


Credentials = Callable[[str, ScramMechanism], ScramCredential | None]
"""Looks up the credential of a user; None if the user has none for the mechanism."""


def hmac_of(key: bytes, message: bytes, mechanism: ScramMechanism) -> bytes:
    """HMAC with the mechanism's hash."""
    return hmac.digest(key, message, mechanism.hash_name)


def hash_of(message: bytes, mechanism: ScramMechanism) -> bytes:
    """The mechanism's hash."""
    return hashlib.new(mechanism.hash_name, message).digest()


def salted_password(password: str, salt: bytes, iterations: int, mechanism: ScramMechanism) -> bytes:
    """The slow part. ValueError if SASLprep refuses the password."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, saslprep(password).encode(), salt, iterations)


def _unacceptable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def check_parameters(salt: bytes, iterations: int) -> None:
    """KafkaError(UNACCEPTABLE_CREDENTIAL) says which parameter is out of its bounds."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise _unacceptable(f"iterations={iterations}: expected {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if not MIN_SALT_BYTES <= len(salt) <= MAX_SALT_BYTES:
        raise _unacceptable(f"a salt of {len(salt)} bytes: expected {MIN_SALT_BYTES} to {MAX_SALT_BYTES}")


def credential_from_salted(
    salted: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism
) -> ScramCredential:
    """The credential of a salted password, which is what Kafka's AlterUserScramCredentials carries."""
    check_parameters(salt, iterations)
    if len(salted) != mechanism.key_bytes:
        raise _unacceptable(f"a salted password of {len(salted)} bytes: expected {mechanism.key_bytes}")
    client_key = hmac_of(salted, b"Client Key", mechanism)
    return ScramCredential(
        salt=salt,
        stored_key=hash_of(client_key, mechanism),
        server_key=hmac_of(salted, b"Server Key", mechanism),
        iterations=iterations,
    )


def make_credential(
    password: str, salt: bytes, iterations: int, mechanism: ScramMechanism
) -> ScramCredential:
    """The credential of a password. KafkaError(UNACCEPTABLE_CREDENTIAL) says why it cannot be one."""
    check_parameters(salt, iterations)
    try:
        salted = salted_password(password, salt, iterations, mechanism)
    except ValueError as problem:
        raise _unacceptable(f"the password cannot be used: {problem}") from None
    return credential_from_salted(salted, salt, iterations, mechanism)


def verify_password(password: str, credential: ScramCredential, mechanism: ScramMechanism) -> bool:
    """Whether this is the credential's password. It takes as long if SASLprep refuses the password."""
    try:
        salted = salted_password(password, credential.salt, credential.iterations, mechanism)
    except ValueError:
        salted_password("", credential.salt, credential.iterations, mechanism)
        return False
    key = hash_of(hmac_of(salted, b"Client Key", mechanism), mechanism)
    return hmac.compare_digest(key, credential.stored_key)


class Decoys(msgspec.Struct, frozen=True):
    """Makes credentials for users that do not exist."""

    secret: bytes
    """The same on all nodes and after a restart, and known only to them."""
    salt_bytes: int = SALT_BYTES
    iterations: int = DEFAULT_ITERATIONS

    def __repr__(self) -> str:
        return "Decoys()"

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The decoy of a user. There is no known password for it."""
        name = f"{mechanism.sasl_name}\0{user}".encode()
        salt = hmac.digest(self.secret, b"salt\0" + name, "sha512")[: self.salt_bytes]
        keys = hmac.digest(self.secret, b"keys\0" + name, "sha512")
        return ScramCredential(
            salt=salt,
            stored_key=hash_of(b"stored\0" + keys, mechanism),
            server_key=hash_of(b"server\0" + keys, mechanism),
            iterations=self.iterations,
        )
