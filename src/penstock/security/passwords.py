"""Which names and passwords a user of the cluster may have.

Some clients apply SASLprep to what a person typed, and others (Kafka's own) do not. So names and passwords that
SASLprep would change are refused: all clients then hash the same bytes. A name has no colon, which HTTP basic could not
send.
"""

import base64

from penstock.errors import ErrorCode, KafkaError
from penstock.security.plain import MAX_PASSWORD_BYTES
from penstock.security.principals import is_login_name
from penstock.security.saslprep import saslprep
from penstock.security.scram_messages import MAX_USER_CHARACTERS

MIN_PASSWORD_CHARACTERS = 8
"""NIST SP 800-63B asks for as many; it advises against rules on kinds of characters."""
PASSWORD_RANDOM_BYTES = 15
"""120 bits: 24 characters."""


def _unacceptable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def _is_prepared(text: str) -> bool:
    try:
        return saslprep(text) == text
    except ValueError:
        return False


def check_user_name(name: str) -> str:
    """The name, if a user may have it. KafkaError(UNACCEPTABLE_CREDENTIAL) says why not."""
    if not 0 < len(name) <= MAX_USER_CHARACTERS:
        raise _unacceptable(f"a user's name has 1 to {MAX_USER_CHARACTERS} characters")
    if not is_login_name(name) or name.startswith("<"):
        raise _unacceptable(f"the user's name {name!r} is reserved, or has control characters")
    if ":" in name or name != name.strip() or not _is_prepared(name):
        raise _unacceptable(
            f"the user's name {name!r} has a colon, outer spaces, or characters that look like others"
        )
    return name


def check_new_password(password: str) -> str:
    """The password, if a user may have it. KafkaError(UNACCEPTABLE_CREDENTIAL) says why not, without quoting it."""
    if len(password) < MIN_PASSWORD_CHARACTERS:
        raise _unacceptable(f"a password has at least {MIN_PASSWORD_CHARACTERS} characters")
    if len(password.encode(errors="surrogatepass")) > MAX_PASSWORD_BYTES:
        raise _unacceptable(f"a password has at most {MAX_PASSWORD_BYTES} bytes")
    if not _is_prepared(password):
        raise _unacceptable(
            "the password has control characters, or characters that clients send in different ways"
        )
    return password


def make_password(random: bytes) -> str:
    """A password of PASSWORD_RANDOM_BYTES random bytes, easy to copy: a-z, 2-7."""
    assert len(random) >= PASSWORD_RANDOM_BYTES
    return base64.b32encode(random).decode().rstrip("=").lower()
