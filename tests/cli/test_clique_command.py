"""`penstock clique` against a broker."""

import json
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from penstock import Broker
from penstock.cli import clique as command
from tests.web.clique_members import CliqueMember, publish_keys, settled

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30) as client:
        yield client


@pytest.fixture
def stream(http: httpx.Client, unique: Unique) -> str:
    name = unique("orders")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    return name


def cells(page: str, first: str) -> list[str]:
    """The row of a table that begins with this cell."""
    [row] = [re.split(r"  +", line) for line in page.splitlines() if line.startswith(f"{first} ")]
    return row


def test_status_shows_shares_and_messages_in_flight(
    cli: Cli, broker: Broker, http: httpx.Client, unique: Unique, stream: str
) -> None:
    name = unique("pricing")
    one, two = (CliqueMember(http, name, worker, stream).join() for worker in ("one", "two"))
    settled(one, two)
    publish_keys(http, stream, *one.keys(3))
    with one.working(broker.http_url) as worker:
        worker.jobs(3)
        page = succeeded(cli("clique", "status", name)).stdout
        [facts] = json.loads(succeeded(cli("clique", "status", name, "--json")).stdout)
    assert page.startswith(f"{name}  (epoch {one.epoch} since ")
    assert "no handovers" in page
    worker_row, other_row, stream_row = (cells(page, first) for first in ("one", "two", stream))
    assert worker_row[1:2] + worker_row[3:6] == ["member", "2,048", "50.0%", "0"]
    assert worker_row[-1] == f"{stream} 3"
    assert other_row[-1] == "-"
    assert stream_row == [stream, "1", "3", "0", "3", "0", "0"]
    assert [(row["worker"], row["slots"], row["in_flight"]) for row in facts["members"]] == [
        ("one", 2048, {stream: 3}),
        ("two", 2048, {}),
    ]


def test_status_shows_handovers_under_way(cli: Cli, http: httpx.Client, unique: Unique, stream: str) -> None:
    name = unique("pricing")
    one = CliqueMember(http, name, "one", stream).join()
    two = CliqueMember(http, name, "two", stream).join()
    page = succeeded(cli("clique", "status", name)).stdout
    assert "2,048 of 4,096 slots are being handed over" in page
    assert cells(page, "one")[3:6] == ["4,096", "100.0%", "2,048"]
    assert cells(page, "two")[3:6] == ["0", "0.0%", "0"]
    settled(one, two)
    assert "no handovers" in succeeded(cli("clique", "status", name)).stdout


def test_status_shows_an_on_release_that_has_not_returned_in_time(
    cli: Cli, http: httpx.Client, unique: Unique, stream: str
) -> None:
    name = unique("pricing")
    one = CliqueMember(http, name, "one", stream).join()
    CliqueMember(http, name, "two", stream).join()
    one.send(overdue=2048).raise_for_status()
    page = succeeded(cli("clique", "status", name)).stdout
    assert cells(page, "one")[5] == "2,048, on_release is late"
    assert cells(page, "two")[5] == "0"
    [facts] = json.loads(succeeded(cli("clique", "status", name, "--json")).stdout)
    assert [row["overdue"] for row in facts["members"]] == [2048, 0]


def test_cliques_are_listed_and_status_without_a_name_shows_all(
    cli: Cli, http: httpx.Client, unique: Unique, stream: str
) -> None:
    names = [unique("pricing"), unique("billing")]
    for name in names:
        CliqueMember(http, name, "w1", stream).join()
    listed = {row["clique"]: row for row in json.loads(succeeded(cli("clique", "list", "--json")).stdout)}
    assert [(listed[name]["members"], listed[name]["handovers"]) for name in names] == [(1, 0), (1, 0)]
    page = succeeded(cli("clique", "list")).stdout
    assert [cells(page, name)[1:3] for name in names] == [["1", "0"], ["1", "0"]]
    shown = json.loads(succeeded(cli("clique", "status", "--json")).stdout)
    assert set(names) <= {one["clique"] for one in shown}


def test_a_worker_that_leaves_is_shown_as_leaving_and_then_is_gone(
    cli: Cli, http: httpx.Client, unique: Unique, stream: str
) -> None:
    name = unique("pricing")
    one, two = (CliqueMember(http, name, worker, stream).join() for worker in ("one", "two"))
    settled(one, two)
    one.send(leaving=True)
    assert cells(succeeded(cli("clique", "status", name)).stdout, "one")[1] == "leaving"
    one.leave()
    two.leave()
    assert "no workers" in succeeded(cli("clique", "status", name)).stdout


def test_watch_shows_one_report_after_the_other(
    cli: Cli, http: httpx.Client, unique: Unique, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("pricing")
    CliqueMember(http, name, "w1", stream).join()
    monkeypatch.setattr(command, "repeated", lambda ask, *_: (ask() for _ in range(2)))
    page = succeeded(cli("clique", "status", name, "--watch")).stdout
    assert len(re.findall(rf"^\d\d:\d\d:\d\d\n{name}  \(", page, re.MULTILINE)) == 2
    lines = succeeded(cli("clique", "status", name, "--watch", "--json")).stdout.splitlines()
    assert [json.loads(line)[0]["clique"] for line in lines] == [name, name]


def test_an_unknown_clique_is_a_problem_that_says_what_to_do(cli: Cli, unique: Unique) -> None:
    result = cli("clique", "status", unique("nothing"))
    assert result.exit_code == 1
    assert "there is no clique" in result.stderr
    assert "penstock clique list" in result.stderr
    assert result.stdout == ""


def test_a_broker_without_cliques_says_so(plain_cli: Cli) -> None:
    with Broker() as empty:
        for verb in ("list", "status"):
            result = succeeded(plain_cli("clique", verb, "--bootstrap", empty.bootstrap_servers))
            assert (result.stdout, result.stderr) == ("", "no cliques\n")
