"""PLAIN (RFC 4616): a user's name and its password in one message.

    [name to act as] NUL user NUL password

The name to act as must be empty or the user's. The password is checked against the SCRAM credentials, for which the
node computes what a SCRAM client would: some milliseconds. A user that does not exist costs the same, by a decoy; only
users without a SCRAM-SHA-256 credential, or with another number of iterations, take another time.
"""

from penstock.security.credentials import SCRAM_MECHANISMS, Credentials, Decoys, verify_password
from penstock.security.errors import AuthenticationError, MalformedMessage
from penstock.security.exchange import Accepted, State, TableExchange
from penstock.security.principals import is_login_name, user
from penstock.security.scram_messages import MAX_USER_CHARACTERS

MAX_PASSWORD_BYTES = 1_024
"""PBKDF2 hashes a password once, however long; people and generators stay far below."""
MAX_PLAIN_BYTES = 2 * 4 * MAX_USER_CHARACTERS + 2 + MAX_PASSWORD_BYTES


def check_password(name: str, password: str, lookup: Credentials, decoys: Decoys) -> str:
    """The principal of the user with this password, for PLAIN and for HTTP basic. AuthenticationError: no such user, or
    another password; only the reason for the log tells which."""
    known = len(name) <= MAX_USER_CHARACTERS and is_login_name(name)
    for mechanism in SCRAM_MECHANISMS:
        found = lookup(name, mechanism) if known else None
        if found is not None:
            if verify_password(password, found, mechanism):
                return user(name)
            raise AuthenticationError(f"wrong password for {user(name)}")
    mechanism = SCRAM_MECHANISMS[0]
    verify_password(password, decoys.credential(name, mechanism), mechanism)
    raise AuthenticationError("there is no such user, or none with a password")


def parse_plain(data: bytes) -> tuple[str, str, str]:
    """The name to act as, the user, the password."""
    if len(data) > MAX_PLAIN_BYTES:
        raise MalformedMessage(f"a PLAIN message has at most {MAX_PLAIN_BYTES} bytes")
    try:
        parts = data.decode().split("\0")
    except UnicodeDecodeError:
        raise MalformedMessage("a PLAIN message is UTF-8") from None
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise MalformedMessage("a PLAIN message is [name] NUL user NUL password")
    if len(parts[1]) > MAX_USER_CHARACTERS or len(parts[2].encode()) > MAX_PASSWORD_BYTES:
        raise MalformedMessage("the user's name or the password is too long")
    return parts[0], parts[1], parts[2]


class PlainServer(TableExchange):
    """One login of a client."""

    __slots__ = ("_decoys", "_lookup")

    def __init__(self, lookup: Credentials, decoys: Decoys) -> None:
        super().__init__({State.FIRST: self._on_first})
        self._lookup = lookup
        self._decoys = decoys

    def _on_first(self, data: bytes) -> tuple[Accepted, State]:
        authzid, name, password = parse_plain(data)
        if authzid not in ("", name):
            raise AuthenticationError("a client asks to act as another user than it logs in as")
        return Accepted(b"", check_password(name, password, self._lookup, self._decoys)), State.OVER
