"""The output of commands: tables for people, JSON for programs.

Rich leaves colour out by itself when the output is not a terminal or NO_COLOR is set.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.common_options import QUIET_KEY

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tabs and line ends. To compile the same as "none of the others" takes 30 ms, a third of a command's time."""
WIDTH_OF_A_PIPE = 1000
"""A table in a pipe or a file is as wide as it needs to be: there is no window to fit."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with 1; `app` decides on the exit code."""
        raise BrokenPipeError

    def print(self, *objects: Any, **how: Any) -> None:
        """Prints; in a pipe or a file without blanks at the ends of lines."""
        if self.is_terminal:
            super().print(*objects, **how)
            return
        with self.capture() as captured:
            super().print(*objects, **how)
        self.file.write(re.sub(r" +\n", "\n", captured.get()))
        self.file.flush()


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return _Console(file=stream, width=None if stream.isatty() else WIDTH_OF_A_PIPE, highlight=False)


def table(*headings: str, rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> Table:
    """A plain table. Columns of integers, and those named in `numbers`, are right-aligned. Only a cell that is a Text
    has colours: clients choose many of the names that are shown here."""
    found = list(rows)
    right = set(numbers)
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for at, heading in enumerate(headings):
        is_right = heading in right or _is_number([row[at] for row in found])
        drawn.add_column(heading, justify="right" if is_right else "left", overflow="fold")
    for row in found:
        drawn.add_row(*[cell if isinstance(cell, Text) else Text(printable(text(cell))) for cell in row])
    return drawn


def _is_number(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int) and not isinstance(cell, bool) for cell in known)


def facts_table(rows: Iterable[Mapping[str, Any]], *columns: str) -> Table:
    """A table of dictionaries. A column is named as its key is, or says both: `end=end_offset`."""
    pairs = [column.partition("=") for column in columns]
    cells = [[row[key or heading] for heading, _, key in pairs] for row in rows]
    return table(*(heading for heading, _, _ in pairs), rows=cells)


def show_facts(rows: Sequence[Mapping[str, Any]], as_json: bool, *columns: str, nothing: str) -> None:
    """The result of a command that lists something: JSON, a table, or a note that there is `nothing`."""
    if as_json:
        show_json(rows)
    elif rows:
        show(facts_table(rows, *columns))
    else:
        note(nothing)


def text(cell: object) -> str:
    """One cell: integers with their digits grouped, absence as a dash, lists with commas."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, list | tuple):
        return ",".join(str(item) for item in cell)
    return str(cell)


def printable(name: str) -> str:
    """The text with control characters written out: a terminal would obey those in the name of a hostile client."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], name)


def counted(number: int, thing: str) -> str:
    """The number and the noun: 1 partition, 2 partitions."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def show(*parts: object) -> None:
    """Prints tables and lines for people."""
    out = console()
    for part in parts:
        out.print(printable(part), markup=False) if isinstance(part, str) else out.print(part)


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def note(line: str) -> None:
    """A line about the run, not its result: on stderr, so that it does not mix with output in a pipe."""
    context = click.get_current_context(silent=True)
    if context is None or not context.meta.get(QUIET_KEY):
        click.echo(line, err=True)
