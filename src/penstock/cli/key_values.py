"""NAME=VALUE arguments of commands."""

from pathlib import Path

import click


def key_values(pairs: tuple[str, ...], parameter: click.Parameter | None = None) -> dict[str, str]:
    """Reads NAME=VALUE arguments."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r}: expected NAME=VALUE", param=parameter)
        found[name] = value
    return found


def key_values_or_files(given: tuple[str, ...]) -> dict[str, str]:
    """Reads NAME=VALUE arguments, and files with one in a line for arguments @FILE: `ps` shows no secret then."""
    pairs: list[str] = []
    for each in given:
        pairs += _lines_of(each[1:]) if each.startswith("@") else [each]
    return key_values(tuple(pairs))


def _lines_of(path: str) -> list[str]:
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise click.BadParameter(f"@{path} cannot be read: {problem}") from None
    found = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not name:  # without the text, which may be a secret
                raise click.BadParameter(f"@{path}: expected NAME=VALUE in line {number}")
            found.append(f"{name.rstrip()}={value.lstrip()}")
    return found
