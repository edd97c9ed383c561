"""`penstock queues` against a broker."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock import Broker
from penstock.cli import queues_show
from penstock.client import Client, Denied
from penstock.node.queues.consumers import LISTED_MAX, ConsumerIdentity, Interface
from tests.web.workers import working

from .conftest import Cli, succeeded

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def queues(cli: Cli) -> Cli:
    """`penstock queues ...`, with nothing but the shared broker's Kafka address in the environment."""
    return lambda *arguments, **rest: cli("queues", *arguments, **rest)


@pytest.fixture
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=60) as client:
        yield client


def publish(http: httpx.Client, topic: str, *values: object) -> None:
    records = [{"key": f"k{number}", "value": value} for number, value in enumerate(values)]
    http.post(f"/v1/topics/{topic}/records", json={"records": records}).raise_for_status()


def take(http: httpx.Client, queue: str, count: int) -> list[Any]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"max": count, "wait_ms": 30_000})
    jobs: list[Any] = answer.json()["jobs"]
    return jobs


def reject(http: httpx.Client, queue: str, count: int) -> int:
    """How many there were, at most so many."""
    receipts = [job["receipt"] for job in take(http, queue, count)]
    http.post(f"/v1/queues/{queue}/settle", json={"reject": receipts}).raise_for_status()
    return len(receipts)


def letters(queues: Cli, queue: str, count: int) -> list[Any]:
    """The dead letters of a queue, once there are so many: they are copied after the reject is answered."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found: list[Any] = json.loads(succeeded(queues("dead-letters", "list", queue, "--json")).stdout)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} dead letters")


def test_a_queue_on_a_topic_whose_retention_may_delete_its_messages_says_so(
    queues: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    http.post("/v1/topics", json={"name": name}).raise_for_status()
    warning = f"warning: retention of {name} may delete messages that are not done"
    assert warning in succeeded(queues("create", name)).stderr
    assert warning in succeeded(queues("describe", name)).stdout


def test_a_queue_is_created_with_its_topic_and_settings(queues: Cli, unique: Unique) -> None:
    name = unique("mail")
    made = queues(
        "create", name, "-p", "3", "--lease", "90s", "--limit", "7", "--order", "key",
        "--dead-letters", f"{name}-dead", "--retry-delay", "250ms",
    )  # fmt: skip
    assert f"created {name} on {name} (3 partitions)" in succeeded(made).stderr
    [facts] = json.loads(succeeded(queues("describe", name, "--json")).stdout)
    assert [row["topic"] for row in facts["partitions"]] == [name] * 3
    settings = facts["settings"]
    assert (settings["lease_ms"], settings["delivery_limit"], settings["order"]) == (90_000, 7, "key")
    assert (settings["dead_letter_topic"], settings["retry_backoff_ms"]) == (f"{name}-dead", 250)
    page = succeeded(queues("describe", name)).stdout
    assert "available" in page
    assert "warning" not in page + made.stderr
    assert "90,000" in page


def test_a_queue_is_created_once(queues: Cli, unique: Unique) -> None:
    name = unique("mail")
    succeeded(queues("create", name))
    again = queues("create", name)
    assert again.exit_code == 1
    assert f"there is a queue '{name}' on {name} already" in again.stderr
    assert "penstock queues describe" in again.stderr


def test_point_to_point_makes_one_partition_one_producer_and_one_consumer(
    queues: Cli, cli: Cli, unique: Unique
) -> None:
    name = unique("payments")
    made = json.loads(succeeded(queues("create", name, "--point-to-point", "--json")).stdout)
    assert made["settings"]["exclusive"] is True
    assert len(made["partitions"]) == 1
    [topic] = json.loads(succeeded(cli("topics", "describe", name, "--json")).stdout)
    assert topic["configs"]["penstock.producer.exclusive"] == "true"


def test_point_to_point_refuses_a_topic_with_more_than_one_partition(
    queues: Cli, cli: Cli, broker: Broker, unique: Unique
) -> None:
    name = unique("payments")
    succeeded(cli("topics", "create", name, "-p", "2"))
    refused = queues("create", name, "--point-to-point")
    assert refused.exit_code == 1
    assert f"needs a topic with one partition, but {name} has 2" in refused.stderr
    succeeded(queues("create", name))
    with (
        Client(broker.bootstrap_servers) as client,
        pytest.raises(Denied, match="needs a topic with one partition"),
    ):
        client.admin.create_queue(name, point_to_point=True)  # also if the queue exists


def test_point_to_point_with_several_partitions_is_refused(queues: Cli, unique: Unique) -> None:
    refused = queues("create", unique("payments"), "--point-to-point", "--partitions", "3")
    assert refused.exit_code == 1
    assert "partitions: expected 1, or nothing" in refused.stderr


@pytest.mark.parametrize("only_new", [False, True])
def test_a_new_queue_has_the_messages_of_its_topic_unless_only_new_ones_are_requested(
    only_new: bool, queues: Cli, cli: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    succeeded(cli("topics", "create", name))
    publish(http, name, "old")
    succeeded(queues("create", name, *(["--only-new"] if only_new else [])))
    publish(http, name, "new")
    assert [job["value"] for job in take(http, name, 10)] == (["new"] if only_new else ["old", "new"])


def test_list_counts_and_peek_shows_without_taking(queues: Cli, http: httpx.Client, unique: Unique) -> None:
    name = unique("mail")
    succeeded(queues("create", name))
    assert "nothing to do" in succeeded(queues("peek", name)).stderr
    publish(http, name, "one", {"two": 2}, "x" * 200)
    [taken] = take(http, name, 1)
    found = json.loads(succeeded(queues("peek", name, "--json")).stdout)
    assert [(row["value"], row["state"], row["deliveries"]) for row in found] == [
        ("one", "leased", 1),
        ({"two": 2}, "available", 0),
        ("x" * 200, "available", 0),
    ]
    assert taken["value"] == "one"
    page = succeeded(queues("peek", name)).stdout
    assert '{"two": 2}' in page
    assert "x" * 60 not in page
    listed = json.loads(succeeded(queues("list", "--json")).stdout)
    [row] = [row for row in listed if row["queue"] == name]
    assert (row["topics"], row["partitions"], row["undone"], row["leased"]) == ([name], 1, 3, 1)
    assert (row["consumers"], row["end_offset"]) == (1, 3)
    assert name in succeeded(queues("list")).stdout


def test_purge_marks_all_messages_done_and_leaves_the_topic_unchanged(
    queues: Cli, cli: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    succeeded(queues("create", name))
    publish(http, name, 1, 2, 3)
    assert queues("purge", name).exit_code == 2  # no terminal to ask for confirmation
    assert f"purged 3 messages of {name}" in succeeded(queues("purge", name, "--yes")).stderr
    assert json.loads(succeeded(queues("peek", name, "--json")).stdout) == []
    lines = succeeded(cli("consume", name, "--from-beginning", "--exit")).stdout.split()
    assert lines == ["1", "2", "3"]


def test_a_deleted_queue_is_gone_with_its_settings(queues: Cli, unique: Unique) -> None:
    name = unique("mail")
    succeeded(queues("create", name, "--lease", "5s"))
    succeeded(queues("delete", name, "--yes"))
    gone = queues("describe", name)
    assert gone.exit_code == 1
    assert "penstock queues list" in gone.stderr
    again = json.loads(succeeded(queues("create", name, "--json")).stdout)
    assert again["settings"]["lease_ms"] == 30_000


def test_dead_letters_are_listed_shown_and_sent_back_without_their_marks(
    queues: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    succeeded(queues("create", name))
    publish(http, name, "first", {"to": "ada"})
    reject(http, name, 2)
    _, letter = letters(queues, name, 2)
    place = f"{name}.dlq:{letter['partition']}:{letter['offset']}"
    listed = succeeded(queues("dead-letters", "list", name)).stdout
    assert place in listed
    assert f"{name}:0:1" in listed
    shown = succeeded(queues("dead-letters", "show", name, place)).stdout
    assert "rejected" in shown
    assert '"to": "ada"' in shown
    assert "1 message" in succeeded(queues("dead-letters", "send-back", name, place)).stderr
    [left] = letters(queues, name, 1)
    assert left["value"] == "first"
    [again] = take(http, name, 10)
    assert (again["value"], again["key"], again["headers"], again["deliveries"]) == (
        {"to": "ada"},
        "k1",
        [],
        1,
    )


def test_all_dead_letters_are_sent_back_at_once_and_none_twice(
    queues: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    succeeded(queues("create", name, "-p", "2"))
    publish(http, name, *range(20))
    rejected = 0
    while rejected < 20:
        rejected += reject(http, name, 20)
    letters(queues, name, 20)
    assert "20 messages" in succeeded(queues("dead-letters", "send-back", name, "--all")).stderr
    assert "0 messages" in succeeded(queues("dead-letters", "send-back", name, "--all")).stderr
    assert "no dead letters" in succeeded(queues("dead-letters", "list", name)).stderr
    back: list[int] = []
    while len(back) < 20:
        back += [job["value"] for job in take(http, name, 100)]
    assert sorted(back) == list(range(20))
    assert undone(queues, name) == 20


def test_a_dead_letter_is_shown_with_the_reason_of_its_failure(
    queues: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("mail")
    succeeded(queues("create", name, "--limit", "1"))
    publish(http, name, "first")
    [job] = take(http, name, 1)
    failed = {"receipt": job["receipt"], "error_type": "SMTPError", "error_text": "mailbox full"}
    http.post(f"/v1/queues/{name}/settle", json={"retry": [failed]}).raise_for_status()
    [letter] = letters(queues, name, 1)
    place = f"{name}.dlq:{letter['partition']}:{letter['offset']}"
    shown = succeeded(queues("dead-letters", "show", name, place)).stdout
    assert "delivered as often as the queue's delivery limit allows" in shown
    assert "SMTPError: mailbox full" in shown
    for what in ("worker", "first failure", "last failure"):
        assert what in shown


def undone(queues: Cli, name: str) -> int:
    [facts] = json.loads(succeeded(queues("describe", name, "--json")).stdout)
    return sum(row["undone"] for row in facts["partitions"])


def test_a_missing_dead_letter_is_refused(queues: Cli, unique: Unique) -> None:
    name = unique("mail")
    succeeded(queues("create", name))
    assert queues("dead-letters", "show", name, f"{name}:0:99").exit_code == 1
    refused = queues("dead-letters", "send-back", name, f"{name}:0:99")
    assert refused.exit_code == 1
    assert "there is no dead letter" in refused.stderr
    assert queues("dead-letters", "send-back", name).exit_code == 2
    assert queues("dead-letters", "show", name, "nonsense").exit_code == 2


@pytest.mark.parametrize("time_said", ["soon", "5 s", "-1s", "1w"])
def test_unparsable_times_are_refused(time_said: str, queues: Cli) -> None:
    refused = queues("create", "mail", "--lease", time_said)
    assert refused.exit_code == 2
    assert "such as 30s" in refused.stderr


def test_scheduled_counts_messages_that_are_not_due_and_shows_when_they_are(
    queues: Cli, http: httpx.Client, unique: Unique
) -> None:
    name = unique("reminders")
    succeeded(queues("create", name))
    assert "due" not in succeeded(queues("scheduled", name)).stdout.replace("next due", "")
    due_ms = 4_102_488_000_000
    records = [{"value": 1, "deliver_at_ms": due_ms}, {"value": 2}]
    http.post(f"/v1/topics/{name}/records", json={"records": records}).raise_for_status()
    found = json.loads(succeeded(queues("scheduled", name, "--json")).stdout)
    assert found["messages"] == [{"topic": name, "partition": 0, "offset": 0, "due_ms": due_ms}]
    page = succeeded(queues("scheduled", name, "--max", "1")).stdout
    assert page.count("2100-01-0") == 2  # midday of the first, in any time zone


# --- consumers


def test_describe_shows_the_consumers_and_delete_names_them(
    queues: Cli, http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    name = unique("mail")
    succeeded(queues("create", name))
    assert "no consumers" in succeeded(queues("describe", name)).stdout
    publish(http, name, "one")
    with working(broker.http_url, name, name, credit=1, name="mailer") as worker:
        worker.jobs(1)
        [facts] = json.loads(succeeded(queues("describe", name, "--json")).stdout)
        [consumer] = facts["consumers"]
        assert (consumer["name"], consumer["leases"]) == ("mailer", 1)
        page = succeeded(queues("describe", name)).stdout
        [line] = [line for line in page.splitlines() if line.startswith("mailer")]
        assert consumer["address"] in line
        assert "websocket" in line
        refused = queues("delete", name, "--yes")
        assert refused.exit_code == 1
        assert f"mailer at {consumer['address']} (websocket)" in refused.stderr
        assert f"penstock queues describe {name}" in refused.stderr


def test_a_list_of_consumers_that_was_cut_says_so(
    queues: Cli, cli: Cli, broker: Broker, unique: Unique
) -> None:
    """A thousand and one of them; the list has a thousand."""
    name = unique("mail")
    succeeded(queues("create", name))
    node: Any = broker._thread.service.node
    [driver] = [one for one in node.queues.manager.drivers() if one.key.group_id == name]
    for number in range(LISTED_MAX):
        identity = ConsumerIdentity.of(
            Interface.KAFKA, f"{name}-{number}", name="mailer", address="", since_ms=1
        )
        driver.consumers.attach(identity)
    cut = f"these {LISTED_MAX:,} have worked on it longest"
    assert cut not in succeeded(queues("describe", name)).stdout
    driver.consumers.attach(
        ConsumerIdentity.of(Interface.KAFKA, "latest", name="latest", address="", since_ms=2)
    )
    [facts] = json.loads(succeeded(queues("describe", name, "--json")).stdout)
    assert (len(facts["consumers"]), facts["more_consumers"]) == (LISTED_MAX, True)
    assert cut in succeeded(queues("describe", name)).stdout
    assert cut in succeeded(cli("groups", "describe", name)).stdout
    [row] = [row for row in json.loads(succeeded(queues("list", "--json")).stdout) if row["queue"] == name]
    assert row["consumers"] == LISTED_MAX + 1
    with Client(broker.bootstrap_servers) as client:
        assert client.admin.queue(name).more_consumers


def test_list_with_watch_shows_rates(queues: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"queue": "mail", "topics": ["mail"], "partitions": 1, "undone": 5, "leased": 0, "consumers": 2}
    polls = [
        (10.0, [{**row, "rate": 0.5, "end_offset": 100}]),
        (12.0, [{**row, "rate": 7, "end_offset": 150}]),
    ]
    monkeypatch.setattr(queues_show, "repeated", lambda *anything: iter(polls))
    page = succeeded(queues("list", "--watch")).stdout
    cells = [line.split()[-3:] for line in page.splitlines() if line.startswith("mail")]
    assert cells == [["2", "0.5", "-"], ["2", "7.0", "25.0"]]
    lines = succeeded(queues("list", "--watch", "--json")).stdout.splitlines()
    assert [json.loads(line)[0]["incoming"] for line in lines] == [None, 25.0]
