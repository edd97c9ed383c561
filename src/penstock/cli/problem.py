"""Errors for people: one line says what failed, one says what to do next."""

import os

import click


class Problem(click.ClickException):
    """An operation that failed. Shown on stderr, never as a traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: object = None) -> None:
        colour = False if os.environ.get("NO_COLOR") else None  # None: where there is a terminal
        click.echo(f"{click.style('error:', fg='red', bold=True)} {self.message}", err=True, color=colour)
        if self.hint:
            click.echo(f"{click.style('try:', bold=True)}   {self.hint}", err=True, color=colour)


class Misconfigured(Problem):
    """Wrong settings: the exit code is that of a wrong command line."""

    exit_code = 2
