"""TLS and logins by the names of Kafka's Java clients: `kafka.security.protocol`, `kafka.sasl.*` and `kafka.ssl.*`.

    sasl.jaas.config            the login modules Plain and Scram, with user and password
    ssl.truststore.location     the authorities, a PEM file; or ssl.truststore.certificates, the same as text
    ssl.keystore.location       this client's certificate and key in one PEM file; or ssl.keystore.certificate.chain and
                                ssl.keystore.key as text

Java's own stores (JKS, PKCS12) cannot be read here, and there is no JVM for callback handlers. Names in this module are
without `kafka.`. Errors never have the value of a setting that may hold a password.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.client.security_settings import (
    HIDDEN,
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    PROTOCOLS,
    SCRAM_MECHANISMS,
    SecuritySettings,
)
from penstock.errors import ConfigError

JAAS: Final = "sasl.jaas.config"
TOKEN: Final = "sasl.oauthbearer.token"
"""A name of ours: Java's clients get tokens from a callback handler."""
PEM: Final = "PEM"

HONOURED: Final = frozenset(
    [
        "security.protocol",
        "sasl.mechanism",
        JAAS,
        "sasl.username",
        "sasl.password",
        TOKEN,
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.type",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    ]
)
WITHOUT_EFFECT: Final = frozenset(
    [
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "security.providers",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.keymanager.algorithm",
        "ssl.keystore.password",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.password",
    ]
)
"""Java's machinery, and passwords of stores, which PEM files do not have. TLS is 1.2 or 1.3, with OpenSSL's ciphers."""

_NO_JVM: Final = "no class names: there is no JVM client here. Leave it out"
_NO_KERBEROS: Final = f"no Kerberos: logins are by {', '.join(MECHANISMS)}"
REFUSED: Final = {
    "sasl.client.callback.handler.class": _NO_JVM,
    "sasl.login.callback.handler.class": _NO_JVM,
    "sasl.login.class": _NO_JVM,
    "ssl.engine.factory.class": _NO_JVM,
    "sasl.kerberos.service.name": _NO_KERBEROS,
}

_MODULES: Final = {
    "PlainLoginModule": (PLAIN,),
    "ScramLoginModule": SCRAM_MECHANISMS,
    "OAuthBearerLoginModule": (OAUTHBEARER,),
}
_MODULE: Final = re.compile(
    r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.I | re.S
)
_OPTION: Final = re.compile(
    r"""\s*([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))\s*""", re.S
)


def security_of(kafka: Mapping[str, str]) -> SecuritySettings:
    """The settings of these options. ConfigError names the first that cannot be meant."""
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(
            "kafka.security.protocol", kafka["security.protocol"], f"one of {', '.join(PROTOCOLS)}"
        )
    fields: dict[str, Any] = {}
    if protocol.startswith("SASL"):
        fields |= _login(kafka)
    if protocol.endswith("SSL"):
        fields |= _tls(kafka)
    settings = SecuritySettings(**fields)
    try:
        settings.validate()
    except ConfigError as problem:
        raise ConfigError(f"kafka.{problem.field}", problem.value, problem.expected) from None
    return settings


def security_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of a reader's or writer's options that are about security: a pipeline gives them to its other end."""
    prefixes = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
    return {name: value for name, value in options.items() if name.lower().startswith(prefixes)}


# --- logins


def _login(kafka: Mapping[str, str]) -> dict[str, str]:
    mechanism = kafka.get("sasl.mechanism", "").upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(
            "kafka.sasl.mechanism", kafka.get("sasl.mechanism"), f"one of {', '.join(MECHANISMS)}"
        )
    jaas = _jaas(kafka[JAAS], mechanism) if JAAS in kafka else {}
    login = {
        "mechanism": mechanism,
        "user": kafka.get("sasl.username") or jaas.get("username", ""),
        "password": kafka.get("sasl.password") or jaas.get("password", ""),
        "token": kafka.get(TOKEN) or jaas.get("token", ""),
    }
    if mechanism == OAUTHBEARER:
        if not login["token"]:
            raise ConfigError("kafka.sasl.mechanism", mechanism, f"a token in kafka.{TOKEN}")
        return {"mechanism": mechanism, "token": login["token"]}
    if not (login["user"] and login["password"]):
        raise ConfigError(
            f"kafka.{JAAS}", HIDDEN if JAAS in kafka else None, 'username="..." and password="..."'
        )
    return login


def _jaas(text: str, mechanism: str) -> dict[str, str]:
    """The options of the login module. Never tells the text: it has the password."""
    module = _MODULE.fullmatch(text)
    name = module.group(1).rpartition(".")[2] if module else ""
    if module is None or name not in _MODULES:
        expected = f'MODULE required username="..." password="..."; with one of {", ".join(_MODULES)}'
        raise ConfigError(f"kafka.{JAAS}", HIDDEN, expected)
    if mechanism not in _MODULES[name]:
        raise ConfigError(
            "kafka.sasl.mechanism", mechanism, f"{' or '.join(_MODULES[name])}, as {name} is its login"
        )
    return _jaas_options(module.group(2))


def _jaas_options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while position < len(text.rstrip()):
        option = _OPTION.match(text, position)
        if option is None:
            raise ConfigError(f"kafka.{JAAS}", HIDDEN, 'pairs of name="value" behind the module')
        name, *values = option.groups()
        value = next(one for one in values if one is not None)
        found[name] = re.sub(r"\\(.)", r"\1", value)
        position = option.end()
    return found


# --- TLS


def _tls(kafka: Mapping[str, str]) -> dict[str, Any]:
    for store in ("truststore", "keystore"):
        kind = kafka.get(f"ssl.{store}.type", PEM)
        if kind.upper() != PEM:
            expected = (
                f"PEM: this is no JVM. `keytool` and `openssl pkcs12` make a PEM file of a {kind} store"
            )
            raise ConfigError(f"kafka.ssl.{store}.type", kind, expected)
    fields = {
        "ca_file": kafka.get("ssl.truststore.location", ""),
        "ca_pem": kafka.get("ssl.truststore.certificates", ""),
        "cert_file": kafka.get("ssl.keystore.location", ""),
        "cert_pem": kafka.get("ssl.keystore.certificate.chain", ""),
        "key_pem": kafka.get("ssl.keystore.key", ""),
        "key_password": kafka.get("ssl.key.password", ""),
    }
    checks_hostname = kafka.get("ssl.endpoint.identification.algorithm", "https").strip() != ""
    return {"tls": True, "check_hostname": checks_hostname, **fields}
