"""Options that many commands have, some of them with `penstock` itself. Loads nothing but click: `app` imports it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click

Command = TypeVar("Command", bound=Callable[..., Any])

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
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def hand_over(
    name: str, make: Callable[..., Any], options: Sequence[Callable[[Any], Any]]
) -> Callable[[Command], Command]:
    """Gives a command these options, and hands it the one object that `make` builds from their values."""
    taken = inspect.signature(make).parameters

    def decorate(command: Command) -> Command:
        def call(**given: Any) -> Any:
            made = make(**{option: given.pop(option) for option in taken})
            return command(**{name: made}, **given)

        wrapped: Any = call
        wrapped.__doc__ = command.__doc__
        wrapped.__name__ = command.__name__
        wrapped.__click_params__ = getattr(command, "__click_params__", [])
        for option in reversed(options):
            wrapped = option(wrapped)
        return cast(Command, wrapped)

    return decorate
