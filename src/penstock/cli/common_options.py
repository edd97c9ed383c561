"""Options of `penstock` itself that all commands with a broker have, too. Loads nothing but click: `app` imports it."""

import click

PROFILE_VARIABLE = "PENSTOCK_PROFILE"
PROFILE_KEY = "penstock.profile"
"""Where a context's `meta` keeps the name that --profile gave. A command and the groups above it have one `meta`."""
QUIET_KEY = "penstock.quiet"


def _remember_profile(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[PROFILE_KEY] = name


def _be_quiet(ctx: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    if quiet:
        ctx.meta[QUIET_KEY] = True


PROFILE_OPTION = click.option(
    "--profile", metavar="NAME", callback=_remember_profile, expose_value=False, is_eager=True,
    help=f"The cluster of this name in the config file.  [env var: {PROFILE_VARIABLE}]",
)  # fmt: skip
QUIET_OPTION = click.option(
    "-q", "--quiet", is_flag=True, callback=_be_quiet, expose_value=False, is_eager=True,
    help="Print results and errors only.",
)  # fmt: skip
