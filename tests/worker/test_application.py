"""Targets such as `shop.jobs:client`, and what is said of those that name no client with workers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.worker.application import NotAnApplication, load_client

MODULE = "application_without_workers"
SOURCE = "from penstock.client import Client\nclient = Client('127.0.0.1:1')\nnumber = 1"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield MODULE
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize(
    ("target", "told"),
    {
        MODULE: "expected MODULE:CLIENT",
        "nowhere:client": "there is no module 'nowhere'",
        f"{MODULE}:nothing": f"{MODULE} has no 'nothing'",
        f"{MODULE}:number": "is a int: expected a Client",
        f"{MODULE}:client": "has no workers",
    }.items(),
)
def test_a_target_without_workers_is_refused(module: str, target: str, told: str) -> None:
    with pytest.raises(NotAnApplication, match=told):
        load_client(target)
