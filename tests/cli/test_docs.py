"""The documentation matches the code."""

import re
import subprocess
import sys
from pathlib import Path

from penstock.cli.app import penstock as root
from penstock.web.metrics import render
from tests.web.test_metrics import snapshot

from .test_help import every_command

PROJECT = Path(__file__).resolve().parent.parent.parent
DOCS = PROJECT / "docs"


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    command = [sys.executable, str(PROJECT / "tools" / "write_config_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_metric_is_in_the_manual() -> None:
    manual = (DOCS / "operations.md").read_text()
    text = render(snapshot()).decode()
    names = re.findall(r"^# HELP (penstock_\w+)", text, re.MULTILINE)
    assert [name for name in names if f"`{name}`" not in manual] == []


def test_every_command_is_in_the_manual() -> None:
    manual = (DOCS / "cli.md").read_text()
    commands = [" ".join(("penstock", *path)) for path in every_command(root)]
    unnamed = [command for command in commands if command not in manual]
    assert unnamed == ["penstock bench consume"]  # documented with its siblings


def test_links_between_pages_have_targets() -> None:
    pages = [*DOCS.glob("*.md"), *PROJECT.glob("*.md")]
    for page in pages:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            found = (page.parent / target) if target else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{page.name}: {target}#{anchor}"
