"""Profiles: the addresses of clusters under names of your own, in ~/.config/penstock/config.toml.

    profile = "staging"                      # used when none is named; may be left out

    [profiles.staging]
    bootstrap = "10.0.0.1:9092,10.0.0.2:9092"
    http = "10.0.0.1:8080"                   # may be left out: the broker says it
    user = "alice"                           # as --user, and so on
    password_file = "~/.config/penstock/staging-password"
    tls_ca = "~/.config/penstock/staging-ca.pem"

    [profiles.staging.kafka]                 # settings of librdkafka, as with -X
    "sasl.mechanism" = "SCRAM-SHA-512"

Which address a command uses: --bootstrap, then the profile that --profile names, then PENSTOCK_BOOTSTRAP, then the
profile that PENSTOCK_PROFILE or the file names. All parts of a profile are used together, or none: an HTTP address or a
security setting of one cluster must not meet the address of another.
"""

import os
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource

from penstock.cli.common_options import PROFILE_KEY, PROFILE_VARIABLE
from penstock.nearest import nearest

_APPLIED = "penstock.profile.applied"
"""Where a context keeps the profile whose address is used."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bootstrap: str | None = None
    http: str | None = None
    user: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    kafka: dict[str, str] = {}

    @property
    def has_security(self) -> bool:
        """Whether it says anything about login or TLS."""
        own = self.user or self.tls or self.tls_ca or self.tls_cert
        return bool(own) or any(name.startswith(("security.", "sasl.", "ssl.")) for name in self.kafka)

    def __repr__(self) -> str:
        """Without settings of librdkafka: there may be a password among them."""
        return f"Profile(bootstrap={self.bootstrap!r}, user={self.user!r})"

    def with_paths(self) -> "Profile":
        """The same, with ~ replaced in the names of files."""
        files = {name: getattr(self, name) for name in ("password_file", "tls_ca", "tls_cert", "tls_key")}
        found = {name: os.path.expanduser(path) for name, path in files.items() if path is not None}
        return msgspec.structs.replace(self, **found)


NO_PROFILE = Profile()


class _ConfigFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profile: str | None = None
    profiles: dict[str, Profile] = {}


def path() -> Path:
    """The file of this user."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".config"
    return folder / "penstock" / "config.toml"


def _read() -> _ConfigFile:
    file = path()
    try:
        text = file.read_text()
        import tomllib  # most users have no such file

        return msgspec.convert(tomllib.loads(text), _ConfigFile)
    except FileNotFoundError:
        return _ConfigFile()
    except (OSError, ValueError) as failure:  # msgspec's and tomllib's errors are ValueErrors
        raise click.UsageError(f"{file}: {failure}; docs/cli.md shows what it may contain") from None


def _find(name: str, source: str) -> Profile:
    known = _read().profiles
    if name not in known:
        there = f"it has {', '.join(sorted(known))}" if known else "it has no profiles"
        raise click.UsageError(
            f"{source}: there is no profile {name!r}{nearest(name, known)} in {path()}: {there}"
        )
    return known[name].with_paths()


def _implicit() -> Profile:
    """The profile that no flag names."""
    if name := os.environ.get(PROFILE_VARIABLE):
        return _find(name, PROFILE_VARIABLE)
    default = _read().profile
    return NO_PROFILE if default is None else _find(default, "profile")


def is_explicit(ctx: click.Context) -> bool:
    return PROFILE_KEY in ctx.meta


def address(ctx: click.Context, parameter: click.Parameter, given: str) -> str:
    """The callback of --bootstrap."""
    source = ctx.get_parameter_source(parameter.name or "")
    if source is ParameterSource.COMMANDLINE:
        return given
    if is_explicit(ctx):
        profile = _find(ctx.meta[PROFILE_KEY], "--profile")
    elif source is ParameterSource.ENVIRONMENT:
        return given
    else:
        profile = _implicit()
    ctx.meta[_APPLIED] = profile
    default = given if source is not ParameterSource.ENVIRONMENT else None
    found = profile.bootstrap or default
    if found is None:
        raise click.UsageError(f"--profile: {ctx.meta[PROFILE_KEY]!r} in {path()} has no `bootstrap`")
    return found


def applied() -> Profile:
    """The profile whose address the running command uses."""
    found = click.get_current_context().meta.get(_APPLIED, NO_PROFILE)
    assert isinstance(found, Profile)
    return found
