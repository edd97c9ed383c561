"""How commands log in and encrypt: --user, --password-file and --tls-*, the variables and the profile behind them.

All of it becomes settings of librdkafka, which commands use as they are; requests to the HTTP API take their header and
their TLS context from the same settings. So `-X` and the `kafka` table of a profile work for both, too.

    user        --user, the profile's `user`, PENSTOCK_USER
    password    --password-file (`-` is stdin), the profile's `password_file`, PENSTOCK_PASSWORD, or a question
    TLS         --tls-ca, --tls-cert and --tls-key, or those of the profile, or PENSTOCK_CLIENT_TLS_CA; --tls alone
                trusts the authorities of the system

A profile's parts are used together: where it says anything about login or TLS, PENSTOCK_USER and
PENSTOCK_CLIENT_TLS_CA are not looked at, since they may be those of another cluster. A password is never an argument,
since `ps` shows these to everybody on the machine.
"""

import os
import ssl
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.cli import profiles
from penstock.cli.problem import Problem
from penstock.client.errors import LoginFailed, TlsFailed
from penstock.client.http_nodes import HttpNodes
from penstock.client.security_arguments import ClientSecurity, client_security
from penstock.client.tls_context import client_context
from penstock.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

USER_VARIABLE = "PENSTOCK_USER"
PASSWORD_VARIABLE = "PENSTOCK_PASSWORD"
TLS_CA_VARIABLE = "PENSTOCK_CLIENT_TLS_CA"
"""Not PENSTOCK_TLS_CA: that is the setting `tls_ca` of `serve`, the authorities that sign the certificates of clients.
With one variable for both, a shell that is set up for commands would start nodes that want certificates of clients."""
MECHANISM = "SCRAM-SHA-256"
"""Users that Penstock makes have both kinds of SCRAM; -X sasl.mechanism=... names another mechanism."""
MAX_PASSWORD_FILE_BYTES = 16 * 1024

_FILE = click.Path(exists=True, dir_okay=False)
_PASSWORD_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)

_OPTIONS = (
    click.option("--user", metavar="NAME", help=f"Log in as this user.  [env var: {USER_VARIABLE}]"),
    click.option("--password-file", metavar="FILE", type=_PASSWORD_FILE,
                 help=f"The file with its password; - is stdin.  [env var: {PASSWORD_VARIABLE}]"),
    click.option("--tls", is_flag=True, help="Use TLS, and trust the system's authorities."),
    click.option("--tls-ca", metavar="FILE", type=_FILE,
                 help=f"Use TLS, and trust these authorities.  [env var: {TLS_CA_VARIABLE}]"),
    click.option("--tls-cert", metavar="FILE", type=_FILE, help="Your own certificate, if the broker wants one."),
    click.option("--tls-key", metavar="FILE", type=_FILE, help="The private key of --tls-cert."),
)  # fmt: skip

_GIVEN = "penstock.login"
"""Where a context keeps the values of these options."""


def LOGIN_OPTIONS(command: Command) -> Command:
    """Gives a command the options. `settings` makes librdkafka's settings of them."""
    for option in reversed(_OPTIONS):
        command = _remembered(option)(command)
    return command


def _remembered(option: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """The option, whose value goes to the context and not to the command's function."""

    def decorate(command: Command) -> Command:
        decorated = option(command)
        parameters: list[click.Parameter] = decorated.__click_params__  # type: ignore[attr-defined]
        parameters[-1].callback = _remember
        parameters[-1].expose_value = False
        return decorated

    return decorate


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    if value:
        ctx.meta.setdefault(_GIVEN, {})[parameter.name] = value


# --- settings


def settings() -> dict[str, str]:
    """librdkafka's settings for the login of the running command."""
    given: dict[str, str] = click.get_current_context().meta.get(_GIVEN, {})
    profile = profiles.applied()
    tls = _tls(given, profile)
    environment = {} if profile.has_security else os.environ
    user = given.get("user") or profile.user or environment.get(USER_VARIABLE)
    if not user:
        if "password_file" in given:
            raise click.UsageError("--password-file: whose password? --user names the user")
        return {"security.protocol": "ssl", **tls} if tls is not None else {}
    is_profiles = user == profile.user
    password_file = given.get("password_file") or (profile.password_file if is_profiles else None)
    return {
        "security.protocol": "sasl_plaintext" if tls is None else "sasl_ssl",
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": _password(user, password_file),
        **(tls or {}),
    }


def _tls(given: Mapping[str, str], profile: profiles.Profile) -> dict[str, str] | None:
    """The settings of TLS; None without it."""
    files = {
        "ssl.ca.location": given.get("tls_ca") or profile.tls_ca,
        "ssl.certificate.location": given.get("tls_cert") or profile.tls_cert,
        "ssl.key.location": given.get("tls_key") or profile.tls_key,
    }
    if not any(files.values()) and not profile.has_security:
        files["ssl.ca.location"] = os.environ.get(TLS_CA_VARIABLE)
    found = {name: path for name, path in files.items() if path}
    if "ssl.key.location" in found and "ssl.certificate.location" not in found:
        raise click.UsageError("--tls-key: of which certificate? --tls-cert names it")
    return found if found or profile.tls or "tls" in given else None


def _password(user: str, file: str | None) -> str:
    if file is not None:
        return read_password(file)
    if given := os.environ.get(PASSWORD_VARIABLE):
        return given
    if sys.stdin is not None and sys.stdin.isatty():
        asked: str = click.prompt(f"password of {user}", hide_input=True, err=True)
        return asked
    raise click.UsageError(
        f"the password of {user} is missing: --password-file names a file (- is stdin), or set {PASSWORD_VARIABLE}"
    )


def read_password(file: str) -> str:
    """The first line of a file, or of stdin."""
    try:
        if file == "-":
            text = sys.stdin.read(MAX_PASSWORD_FILE_BYTES)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_PASSWORD_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not UTF-8"
        raise click.UsageError(f"--password-file: {file}: {reason}") from None
    password = text.split("\n", 1)[0].rstrip("\r")
    if not password:
        raise click.UsageError(f"--password-file: {file} is empty")
    return password


# --- Spark

_JAVA_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """The same settings by the names that Kafka's Java clients have, as options of the data source for Spark."""
    if not kafka:
        return {}
    found = {"security.protocol": kafka["security.protocol"].upper()}
    if "sasl.mechanism" in kafka:
        user, password = (_quoted(kafka[name]) for name in ("sasl.username", "sasl.password"))
        module = _JAVA_MODULES[kafka["sasl.mechanism"]]
        found["sasl.mechanism"] = kafka["sasl.mechanism"]
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if "ssl.ca.location" in kafka:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": kafka["ssl.ca.location"]}
    if "ssl.certificate.location" in kafka:
        found |= _java_keystore(kafka)
    return {f"kafka.{name}": value for name, value in found.items()}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _java_keystore(kafka: Mapping[str, str]) -> dict[str, str]:
    """Java takes certificate and key as text, where they are in two files."""
    files = [kafka[name] for name in ("ssl.certificate.location", "ssl.key.location") if name in kafka]
    try:
        texts = [Path(file).read_text() for file in files]
    except (OSError, UnicodeDecodeError) as failure:
        raise click.UsageError(f"--tls-cert, --tls-key: {failure}") from None
    names = ("ssl.keystore.certificate.chain", "ssl.keystore.key")
    return {"ssl.keystore.type": "PEM", **dict(zip(names, texts, strict=False))}


# --- HTTP


def security_of(kafka: Mapping[str, str]) -> ClientSecurity:
    """The login and TLS that these settings of librdkafka ask for."""
    try:
        return client_security({}, kafka)
    except ConfigError as wrong:
        raise click.UsageError(str(wrong)) from None


def is_encrypted(kafka: Mapping[str, str]) -> bool:
    """Whether these settings of librdkafka ask for TLS."""
    return security_of(kafka).settings.tls


def http_headers(kafka: Mapping[str, str], url: str) -> dict[str, str]:
    """The login for the HTTP port at this URL. A password that goes to the Kafka port encrypted goes to no other
    machine as it is; without TLS there, the person has decided."""
    security = security_of(kafka)
    try:
        return HttpNodes(list, security, () if security.settings.tls else (url,)).headers(url)
    except LoginFailed:
        raise Problem(
            f"{url} has no TLS, and the password would go over the network as it is",
            "start the nodes with TLS on their HTTP port, or name one that has it: --http https://HOST:PORT",
        ) from None


def tls_context(kafka: Mapping[str, str]) -> ssl.SSLContext:
    """TLS as these settings of librdkafka want it."""
    try:
        return client_context(security_of(kafka).settings)
    except TlsFailed as failure:
        raise Problem(
            f"the files for TLS cannot be used: {failure.detail}", "--tls-ca and --tls-cert are PEM"
        ) from None
