"""docs/http-api.md: its examples work as printed, and it lists every path."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock import Broker
from penstock.config import Limits
from penstock.node.status import samples
from tests.web.pushing import subscriber

PAGE = Path(__file__).resolve().parents[3] / "docs" / "http-api.md"
SAID = "http://127.0.0.1:8080"
JSON = "application/json"
NEVER_MS = 10**12


class Example(NamedTuple):
    """A command of the page, and the response that it shows, if any."""

    command: str
    shown: Any


def examples() -> Iterator[Example]:
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, answer = part.partition("\n")
            yield Example(command, json.loads(answer) if answer.strip() else None)


def run(command: str, url: str) -> httpx.Response:
    """Does what curl would do."""
    words = iter(shlex.split(command))
    assert next(words) == "curl"
    method, headers, body, where = "", {}, None, ""
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word in ("--json", "--data-binary", "-d"):
            body = next(words).encode()
            headers |= {"Content-Type": JSON} if word == "--json" else {}
        elif word != "-s":
            where = word
    assert where.startswith(SAID), command
    method = method or ("GET" if body is None else "POST")
    return httpx.request(method, where.replace(SAID, url), content=body, headers=headers, timeout=30)


def subscribe_once(url: str) -> None:
    """The subscriber that the page mentions, which curl cannot be. Returns after it has disconnected."""
    with subscriber(url) as one:
        assert one.subscribe("ledger", "notes", read_old=True)["type"] == "subscribed"
    while httpx.get(f"{url}/v1/subscriptions/ledger", timeout=30).json()["attached"]:
        pass


def shape(value: Any) -> Any:
    """Names and types, without values that differ between runs."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def test_every_example_does_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "SAMPLE_MS", NEVER_MS)  # lags are null before the first sample
    found = list(examples())
    assert len(found) >= 15
    with Broker() as broker:
        first = next(one for one in found if "/v1/subscriptions" in one.command)
        for example in found:
            if example is first:
                subscribe_once(broker.http_url)
            answer = run(example.command, broker.http_url)
            refused = example.shown is not None and "error" in example.shown
            assert (answer.status_code >= 400) is refused, f"{example.command}: {answer.text}"
            if example.shown is not None:
                assert shape(answer.json()) == shape(example.shown), example.command
            if refused:
                assert answer.json() == example.shown


def test_every_path_that_is_served_is_on_the_page(http: httpx.Client) -> None:
    page = PAGE.read_text()
    listed = http.get("/v1").json()["paths"]
    missing = [row["path"] for row in listed if row["path"] not in page]
    assert missing == []
    named = [f"{row['method']} {row['path']}" for row in listed]
    assert [name for name in named if f"`{name}`" not in page] == []


def test_the_limits_are_those_of_the_code() -> None:
    page, limits = PAGE.read_text(), Limits()
    mebibytes = {"max_http_body_bytes", "max_http_memory_bytes"}
    for name in (*sorted(mebibytes), "max_http_connections", "http_body_timeout_ms"):
        value = getattr(limits, name)
        shown = f"{value // 2**20} MiB" if name in mebibytes else f"{value:,}"
        assert f"| `{name}` | {shown} |" in page
