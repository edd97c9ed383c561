"""Security settings as people write them: arguments of `Client`, or librdkafka's names in `kafka={...}`.

    user, password     sasl.username, sasl.password        tls_ca      ssl.ca.location
    token              oauth_cb                            tls_cert    ssl.certificate.location
    tls=True           security.protocol=SSL               tls_key     ssl.key.location

Both forms may be mixed, as long as they do not name the same thing twice. librdkafka gets its settings back as they
were written, completed by those that follow from the arguments: it knows more of them than are understood here, and
those are for the Kafka port alone.
"""

import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

from penstock.client.security_settings import (
    API_TOKEN_PREFIX,
    DEFAULT_MECHANISM,
    MECHANISMS,
    OAUTHBEARER,
    PROTOCOLS,
    SecuritySettings,
    shown,
)
from penstock.errors import ConfigError

OAUTH_CALLBACK: Final = "oauth_cb"
UNKNOWN_LIFETIME_S: Final = 3600.0
"""Of a token that does not say when it expires: librdkafka wants to know."""
LEAST_LIFETIME_S: Final = 60.0
SYSTEM_AUTHORITIES: Final = "probe"
"""librdkafka's word for them, instead of a file."""

_FIELDS: Final = {
    "sasl.username": "user",
    "sasl.password": "password",
    "ssl.ca.location": "ca_file",
    "ssl.ca.pem": "ca_pem",
    "ssl.certificate.location": "cert_file",
    "ssl.certificate.pem": "cert_pem",
    "ssl.key.location": "key_file",
    "ssl.key.pem": "key_pem",
    "ssl.key.password": "key_password",
}
"""The fields of SecuritySettings that librdkafka has a name for."""
_ARGUMENTS: Final = {
    "user": "sasl.username",
    "password": "sasl.password",
    "tls_ca": "ssl.ca.location",
    "tls_cert": "ssl.certificate.location",
    "tls_key": "ssl.key.location",
}

Token = str | Callable[[], str]
"""A token, or a function that returns one which is good now. It is called for each request over HTTP."""


class SecurityArguments(TypedDict, total=False):
    """The arguments for security of clients and cliques."""

    user: str | None
    password: str | None
    token: Token | None
    tls: bool
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The settings, and all settings for librdkafka: those that were given, and those that follow."""

    settings: SecuritySettings
    """Without a token."""
    librdkafka: Mapping[str, Any]
    token: Callable[[], str] | None

    def __repr__(self) -> str:
        return f"ClientSecurity({self.settings!r})"

    @property
    def has_credentials(self) -> bool:
        return self.token is not None or self.settings.has_credentials

    def current(self) -> SecuritySettings:
        """With a token that is good now."""
        return self.settings if self.token is None else replace(self.settings, token=self.token())


def client_security(arguments: SecurityArguments, kafka: Mapping[str, Any]) -> ClientSecurity:
    """Of a client with these arguments and this `kafka={...}`. ConfigError says what contradicts what."""
    known = SecurityArguments.__annotations__
    if unknown := [name for name in arguments if name not in known]:
        raise TypeError(
            f"{unknown[0]}=...: there is no such argument; those for security are {', '.join(known)}"
        )
    given = _with_arguments(kafka, arguments)
    token = _token_source(arguments.get("token"), given)
    is_for_http = _is_api_token(arguments.get("token"))
    settings = _settings(given, token is not None and not is_for_http, arguments.get("tls", False))
    if settings.mechanism in MECHANISMS or not settings.mechanism:
        settings.validate()
    _check_files(settings)
    if settings.mechanism == OAUTHBEARER and (token is None or is_for_http):
        raise ConfigError("sasl.mechanism", OAUTHBEARER, "a token of the identity provider: token=...")
    return ClientSecurity(settings, _for_librdkafka(given, settings, token), token)


def _check_files(settings: SecuritySettings) -> None:
    files = {"tls_ca": settings.ca_file, "tls_cert": settings.cert_file, "tls_key": settings.key_file}
    for argument, file in files.items():
        if file and not os.path.exists(file):
            raise ConfigError(argument, file, "a file that exists where the client runs")


def _with_arguments(kafka: Mapping[str, Any], arguments: SecurityArguments) -> dict[str, Any]:
    given = dict(kafka)
    if "sasl.mechanisms" in given:  # librdkafka has two names for it
        given["sasl.mechanism"] = given.pop("sasl.mechanisms")
    for argument, name in _ARGUMENTS.items():
        value: Any = arguments.get(argument)
        if value is None:
            continue
        if name in given:
            raise ConfigError(argument, shown(argument, value), f"no {name} in kafka=...: both say the same")
        given[name] = _text(argument, value)
    return given


def _text(argument: str, value: object) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not text:
        raise ConfigError(argument, shown(argument, value), "text, and not an empty one")
    return text


def _is_api_token(token: Token | None) -> bool:
    return isinstance(token, str) and token.startswith(API_TOKEN_PREFIX)


def _token_source(token: Token | None, given: Mapping[str, Any]) -> Callable[[], str] | None:
    callback = given.get(OAUTH_CALLBACK)
    if token is None:
        return None if callback is None else lambda: str(callback("")[0])
    if callback is not None:
        raise ConfigError(
            "token", shown("token", token), f"no {OAUTH_CALLBACK} in kafka=...: both say the same"
        )
    if callable(token):
        return token
    text = _text("token", token)
    return lambda: text


# --- from librdkafka's names


def _settings(given: Mapping[str, Any], has_kafka_token: bool, tls: bool) -> SecuritySettings:
    fields: dict[str, Any] = {field: str(given[name]) for name, field in _FIELDS.items() if given.get(name)}
    if fields.get("ca_file") == SYSTEM_AUTHORITIES:
        del fields["ca_file"]
    mechanism = _mechanism(given, has_kafka_token)
    is_tls, has_login = _protocol(given, tls or _mentions_tls(fields), bool(mechanism))
    return SecuritySettings(
        **fields,
        tls=is_tls,
        mechanism=mechanism if has_login else "",
        check_certificate=str(given.get("enable.ssl.certificate.verification", "true")).lower() != "false",
        check_hostname=str(given.get("ssl.endpoint.identification.algorithm", "https")).lower() != "none",
    )


def _mentions_tls(fields: Mapping[str, Any]) -> bool:
    return any(name.startswith(("ca_", "cert_", "key_")) for name in fields)


def _mechanism(given: Mapping[str, Any], has_token: bool) -> str:
    named = given.get("sasl.mechanism")
    if named:
        return str(named).upper()
    if given.get("sasl.username"):
        return DEFAULT_MECHANISM
    return OAUTHBEARER if has_token else ""


def _protocol(given: Mapping[str, Any], tls: bool, login: bool) -> tuple[bool, bool]:
    """Whether connections have TLS and a login: by the protocol that is named, or by the other settings."""
    named = given.get("security.protocol")
    if named is None:
        return tls, login
    protocol = str(named).upper()
    if protocol not in PROTOCOLS:
        raise ConfigError("security.protocol", named, f"one of {', '.join(PROTOCOLS)}")
    if protocol.startswith("SASL") and not login:
        raise ConfigError("security.protocol", named, "a user and a password, or a token, as well")
    return protocol.endswith("SSL"), protocol.startswith("SASL")


# --- for librdkafka


def _for_librdkafka(
    given: Mapping[str, Any], settings: SecuritySettings, token: Callable[[], str] | None
) -> dict[str, Any]:
    """librdkafka's own defaults stay as they are where nothing was said."""
    made = dict(given)
    if settings.protocol != "PLAINTEXT":
        made["security.protocol"] = settings.protocol
    if settings.mechanism:
        made["sasl.mechanism"] = settings.mechanism
    if settings.mechanism == OAUTHBEARER and token is not None:
        made.setdefault(OAUTH_CALLBACK, _callback(token))
    return made


def _callback(token: Callable[[], str]) -> Callable[[str], tuple[str, float]]:
    def answer(_config: str) -> tuple[str, float]:
        text = token()
        # librdkafka does not even try one that has expired, and cannot tell why. The broker can.
        return text, max(_expires_s(text), time.time() + LEAST_LIFETIME_S)

    return answer


def _expires_s(token: str) -> float:
    """When a JWT expires, in seconds since 1970. Only the broker can tell whether it is a good one."""
    try:
        claims = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
    except (ValueError, LookupError, TypeError):
        return time.time() + UNKNOWN_LIFETIME_S
