"""Which Penstock this is, and whether its loops over records are compiled."""

import click

from penstock.version import VERSION


def pure_python() -> str:
    """A note for people whose installation is slower than it could be; empty if it is compiled."""
    from penstock.batch import IS_COMPILED

    if IS_COMPILED:
        return ""
    return (
        "pure Python: loops over records are not compiled and run slower. Install a wheel for this Python, "
        "or install again with a C compiler"
    )


def show_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        note = pure_python()
        click.echo(f"penstock {VERSION}" + (f" ({note})" if note else ""))
        ctx.exit()
