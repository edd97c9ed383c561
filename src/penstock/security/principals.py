"""Principals: the names that access rules and quotas are given to.

A principal is a text, `TYPE:NAME`, split at its first colon as Kafka does:

    User:alice                    a person or a program that has logged in
    User:CN=web,O=Example         a client that showed a certificate, unless a mapping rule shortens its subject
    User:ANONYMOUS                a client that has not logged in
    User:*                        in access rules: everybody, ANONYMOUS included
    Group:ops                     a group that an identity provider names in a token

A caller acts for its user and for the user's groups at once; a rule for any of them is a rule for the caller.
`Group:*` is refused, because it would look as if it meant something.

Names come from users, certificates and tokens, and they are stored and shown. So they are short, and have no control
characters, which could forge lines of a log.
"""

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.types import ANONYMOUS_PRINCIPAL

USER = "User"
GROUP = "Group"
EVERYBODY = "User:*"
"""In a rule: matches every caller."""

MAX_PRINCIPAL_CHARACTERS = 1024
"""Subjects of certificates have some hundred characters; every rule and every forwarded request carries one."""

_TYPES = (USER, GROUP)


class Principal(msgspec.Struct, frozen=True):
    """A principal in its two parts."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def user(name: str) -> str:
    """The principal of a user."""
    return f"{USER}:{name}"


def group(name: str) -> str:
    """The principal of a group."""
    return f"{GROUP}:{name}"


def _refused(text: str, expected: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"principal {text[:100]!r}: {expected}")


def parse_principal(text: str) -> Principal:
    """The parts of a principal in an access rule. KafkaError(INVALID_REQUEST) says what is wrong with it."""
    kind, colon, name = text.partition(":")
    if not colon or kind not in _TYPES:
        raise _refused(text, "expected User:NAME or Group:NAME")
    if len(text) > MAX_PRINCIPAL_CHARACTERS:
        raise _refused(text, f"at most {MAX_PRINCIPAL_CHARACTERS} characters")
    if not name or not name.isprintable():
        raise _refused(text, "expected a name without control characters")
    if kind == GROUP and name == "*":
        raise _refused(text, "User:* means everybody; there is no Group:*")
    return Principal(kind, name)


def is_login_name(name: str) -> bool:
    """Whether a certificate or a token may make a client the user, or a member of the group, of this name.

    `*` and ANONYMOUS are names in rules: a client that got one of them by logging in would look like another.
    """
    return (
        0 < len(name) <= MAX_PRINCIPAL_CHARACTERS - len("Group:")
        and name.isprintable()
        and name != "*"
        and user(name) != ANONYMOUS_PRINCIPAL
    )


def name_of(principal: str) -> str:
    """The name in a principal that was checked before: `alice` of `User:alice`."""
    return principal.partition(":")[2]
