"""The page about the client: its examples run, in order, as printed."""

import logging
import re
from pathlib import Path

import pytest

from penstock import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_all_python_on_the_page_runs(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.client.workers")
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 12
    with Broker() as broker:
        script = "\n".join(blocks).replace("127.0.0.1:9092", broker.bootstrap_servers)
        names: dict[str, object] = {"__name__": "page"}
        try:
            exec(compile(script, str(PAGE), "exec"), names)
        finally:
            names["client"].close()  # type: ignore[attr-defined]
    shown = capsys.readouterr().out
    assert "b'{\"amount\": 12}'" in shown
    assert "not for long" in shown
    assert "sum: 6" in shown
