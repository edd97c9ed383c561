"""Where the keys of an identity provider may come from: whoever changes them on the way can log in as any user."""

import pytest

from penstock.config.oidc import OidcSettings
from penstock.errors import ConfigError


def validate(jwks: str) -> None:
    OidcSettings(jwks=jwks, issuer="https://id.example", audience="penstock").validate()


@pytest.mark.parametrize(
    "jwks",
    [
        "keys.json",
        "https://id.example/keys",
        "http://localhost/keys",
        "http://LOCALHOST:8080/keys",
        "http://127.0.0.1:8080/keys",
        "http://[::1]:8080/keys",
    ],
)
def test_keys_may_come_from_a_file_an_encrypted_connection_or_this_machine(jwks: str) -> None:
    validate(jwks)


@pytest.mark.parametrize(
    "jwks",
    [
        "http://id.example/keys",
        "http://127.0.0.1.evil.example/keys",
        "http://localhost.evil.example/keys",
        "http://localhost@evil.example/keys",
        "http://localhost:80@evil.example/keys",
        "http://[::1/keys",
        "http://[evil]/keys",
        "http:///keys",
    ],
)
def test_keys_do_not_travel_unencrypted_from_another_machine(jwks: str) -> None:
    with pytest.raises(ConfigError, match="expected https://") as refused:
        validate(jwks)
    assert refused.value.field == "oidc.jwks"
