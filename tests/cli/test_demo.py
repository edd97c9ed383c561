"""`penstock demo`, small: the whole story, with a real kill -9."""

import json
from pathlib import Path

from .conftest import Cli, succeeded


def test_the_demo_tells_its_story_and_leaves_nothing(plain_cli: Cli, tmp_path: Path) -> None:
    result = succeeded(plain_cli("demo", "--messages", "5000", "--data-dir", str(tmp_path), "--json"))
    figures = json.loads(result.stdout)
    assert (figures["lost"], figures["stored_twice"]) == (0, 0)
    assert figures["restart_ms"] > 0
    assert figures["gap_ms"] > 0
    assert list(tmp_path.iterdir()) == []
