"""What the command line prints of names that clients choose."""

import pytest
from rich.text import Text

from penstock.cli.output import printable, show, table

HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J [/x] [bold]b[/bold]"
SHOWN = r"\x1b[31mred\x1b]0;title\x07\x9b2J [/x] [bold]b[/bold]"


def test_a_terminal_does_not_obey_names() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("zwölf ☂ 🌂\nand\tmore") == "zwölf ☂ 🌂\nand\tmore"


def test_a_table_and_a_line_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(HOSTILE, table("name", "", rows=[[HOSTILE, Text.from_markup("[red]coloured[/red]")]]))
    line, _, _, row = capsys.readouterr().out.splitlines()
    assert line == SHOWN
    assert row.split("   ") == [SHOWN, "coloured"]
