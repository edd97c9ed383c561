"""The principal of a client that showed a certificate: its subject, shortened by Kafka's mapping rules.

The subject is written as RFC 2253 says, as Kafka does it: the last part first, `CN=web,OU=shop,O=Example,C=DE`. Parts
with a short name in RFC 2253 (CN, L, ST, O, OU, C, STREET, DC, UID) have that name; others have the long name that
OpenSSL gives them.

`ssl.principal.mapping.rules` is a list of rules, separated by commas. The first one that matches the whole subject
gives the user's name:

    RULE:pattern/replacement/       replacement may use $0, $1, ...; a slash in a pattern is written \\/
    RULE:pattern/replacement/L      ... in lower case;  /U in upper case
    DEFAULT                         the subject as it is

A subject that no rule matches is refused. Patterns are the operator's own, so Python's `re` serves; the subject is
the client's, and bounded, since a careless pattern takes time that grows with a power of the subject's length.
"""

import re
from collections.abc import Iterable

import msgspec

from penstock.errors import ConfigError
from penstock.security.errors import AuthenticationError
from penstock.security.principals import is_login_name, user

RULES_FIELD = "ssl.principal.mapping.rules"
MAX_RULES_CHARACTERS = 8_192
"""The whole setting; real ones have one or two rules of 50 characters."""
MAX_SUBJECT_CHARACTERS = 1_000
"""A subject has a handful of parts of at most 64 characters (RFC 5280); with more, matching could take seconds."""

Subject = Iterable[Iterable[tuple[str, str]]]
"""As `ssl.SSLSocket.getpeercert()["subject"]` gives it: parts that each have one or more attributes."""

_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d+)")
_SPECIAL = re.compile(r'([,+"\\<>;])')


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and value != " " else text


def distinguished_name(subject: Subject) -> str:
    """The subject in the form of RFC 2253."""
    parts = [
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in subject
    ]
    return ",".join(reversed(parts))


class MappingRule(msgspec.Struct, frozen=True):
    """One rule. `pattern` is None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The user's name, or None if the rule does not match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        result = _expanded(self.replacement, match)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """As Java: `$12` is group 12 if there is one, else group 1 and a 2; a group that does not exist stays as text."""

    def one(reference: re.Match[str]) -> str:
        escaped, digits = reference.groups()
        if escaped is not None:
            return str(escaped)
        for length in range(len(digits), 0, -1):
            if int(digits[:length]) <= match.re.groups:
                return (match.group(int(digits[:length])) or "") + digits[length:]
        return str(reference[0])

    return _REFERENCE.sub(one, replacement)


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """The rules of a setting; without any it is DEFAULT. ConfigError names the part that is wrong."""
    if len(text) > MAX_RULES_CHARACTERS:
        raise ConfigError(RULES_FIELD, f"{text[:50]}…", f"at most {MAX_RULES_CHARACTERS} characters")
    rules = []
    position = 0
    while position < len(text.rstrip()):
        found = _RULE.match(text, position)
        if found is None:
            raise ConfigError(RULES_FIELD, text[position:], "DEFAULT or RULE:pattern/replacement/[LU]")
        rules.append(_rule(found))
        position = found.end()
    return tuple(rules) or (MappingRule(None),)


def _rule(found: re.Match[str]) -> MappingRule:
    if found[1]:
        return MappingRule(None)
    try:
        return MappingRule(re.compile(found[2]), found[3], found[4])
    except (re.error, RecursionError, OverflowError) as problem:
        raise ConfigError(RULES_FIELD, found[2], f"a regular expression ({problem})") from None


def certificate_principal(name: str, rules: tuple[MappingRule, ...]) -> str:
    """The principal of a certificate's subject, which is given as RFC 2253 writes it."""
    if len(name) > MAX_SUBJECT_CHARACTERS:
        raise AuthenticationError(f"a certificate's subject has over {MAX_SUBJECT_CHARACTERS} characters")
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            if not is_login_name(mapped):
                raise AuthenticationError(f"the subject {name!r} does not map to a user's name")
            return user(mapped)
    raise AuthenticationError(f"no mapping rule matches the subject {name!r}")
