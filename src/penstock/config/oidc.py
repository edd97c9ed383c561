"""Settings of an identity provider, whose tokens clients may log in with (SASL/OAUTHBEARER, HTTP Bearer)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.address import Address
from penstock.config.fields import check_fields
from penstock.errors import ConfigError

Text = Annotated[str, Meta(max_length=2048)]


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without `jwks`, there is no identity provider, and no token is accepted."""

    jwks: Text = ""
    """The provider's public keys (JWKS): a file, or a URL that begins with https://; on this machine also http://."""
    issuer: Text = ""
    """The claim `iss` of its tokens."""
    audience: Text = ""
    """The claim `aud` of its tokens must name this: tokens for other services are refused."""
    subject_claim: Annotated[str, Meta(min_length=1, max_length=256)] = "sub"
    """The claim with the user's name: `User:alice` for alice."""
    groups_claim: Annotated[str, Meta(max_length=256)] = ""
    """The claim with the user's groups, or a path to it (`realm_access.roles`): `Group:ops` for ops. Empty: none."""
    clock_skew_ms: Annotated[int, Meta(ge=0, le=600_000)] = 30_000
    """By how much the provider's clock may differ."""

    @property
    def is_set(self) -> bool:
        return bool(self.jwks)

    def validate(self) -> None:
        check_fields(self, "oidc.")
        if not self.is_set:
            self._check_unused()
            return
        for field in ("issuer", "audience"):
            if not getattr(self, field):
                expected = "a text: tokens of other issuers, or for other services, must not be accepted"
                raise ConfigError(f"oidc.{field}", "", expected)
        if self.jwks.startswith("http://") and not _is_on_this_machine(self.jwks):
            expected = (
                "https://, a file, or http:// with localhost or a loopback address: an attacker who changes the keys "
                "on the way could log in as any user"
            )
            raise ConfigError("oidc.jwks", self.jwks, expected)

    def _check_unused(self) -> None:
        for field in ("issuer", "audience", "groups_claim"):
            if getattr(self, field):
                expected = "oidc.jwks as well: without keys, no token can be verified"
                raise ConfigError(f"oidc.{field}", getattr(self, field), expected)


def _is_on_this_machine(url: str) -> bool:
    """By the URL's host, and not by how it begins: `127.0.0.1.example.org` is a name that anyone may own."""
    from urllib.parse import urlsplit  # most nodes never ask, and it costs start time

    try:
        host = urlsplit(url).hostname
    except ValueError:  # brackets without an IPv6 address
        return False
    return host is not None and Address(host, 0).is_loopback
