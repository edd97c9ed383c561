"""`penstock users`, `acls` and `roles`, with a broker that requires login."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result

from penstock import Broker

from .conftest import succeeded
from .secured import As, run_as, secured_broker

Unique = Callable[[str], str]
NEW = "a password of my own"


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with secured_broker() as broker:
        yield broker


@pytest.fixture
def run(secured: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> As:
    return run_as(secured, monkeypatch, tmp_path, {"carol": NEW})


@pytest.fixture
def carol(run: As) -> Iterator[str]:
    succeeded(run("admin", "users", "create", "carol", "--new-password-file", "-", stdin=NEW + "\n"))
    yield "carol"
    run("admin", "users", "delete", "carol", "--yes")


def answer(result: Result) -> Any:
    return json.loads(succeeded(result).stdout)


# --- users


def test_a_user_is_created_listed_and_deleted(run: As, carol: str) -> None:
    rows = {row["user"]: row for row in answer(run("admin", "users", "list", "--json"))}
    assert rows[carol]["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    page = succeeded(run("admin", "users", "list")).stdout
    assert "carol" in page
    assert "SCRAM-SHA-512" in page
    succeeded(run(carol, "topics", "list"))
    succeeded(run("admin", "users", "delete", carol, "--yes"))
    gone = run(carol, "topics", "list")
    assert gone.exit_code == 1
    assert "the login of carol was refused: invalid credentials" in gone.stderr


def test_a_generated_password_is_printed_once_and_works(run: As, secured: Broker) -> None:
    made = succeeded(run("admin", "users", "create", "dave", "--generate"))
    password = made.stdout.strip()
    assert len(password) >= 20
    assert password not in made.stderr
    assert httpx.get(f"{secured.http_url}/v1", auth=("dave", password)).status_code == 200
    as_json = answer(run("admin", "users", "create", "erin", "--generate", "--json"))
    assert httpx.get(f"{secured.http_url}/v1", auth=("erin", as_json["password"])).status_code == 200
    succeeded(run("admin", "users", "delete", "dave", "erin", "--yes"))


def test_a_password_comes_from_a_file_and_never_from_an_argument(run: As, tmp_path: Path) -> None:
    missing = run("admin", "users", "create", "dave", stdin="")
    assert missing.exit_code == 2
    assert "--new-password-file" in missing.stderr
    for words in (("--password", "secret word"), ("--new-password", "secret word")):
        assert run("admin", "users", "create", "dave", *words).exit_code == 2
    file = tmp_path / "new"
    file.write_text("")
    empty = run("admin", "users", "create", "dave", "--new-password-file", str(file))
    assert (empty.exit_code, "is empty" in empty.stderr) == (2, True)


def test_users_set_their_own_password_and_no_other(run: As, carol: str, secured: Broker) -> None:
    succeeded(run(carol, "users", "passwd", "--new-password-file", "-", stdin="the next password\n"))
    assert httpx.get(f"{secured.http_url}/v1", auth=(carol, "the next password")).status_code == 200
    refused = run("alice", "users", "passwd", carol, "--new-password-file", "-", stdin="taken over\n")
    assert refused.exit_code == 1
    assert "User:alice has no ALTER permission on cluster" in refused.stderr
    assert "penstock acls check" in refused.stderr


def test_a_refusal_says_what_to_do_next(run: As, carol: str) -> None:
    twice = run("admin", "users", "create", carol, "--generate")
    assert (twice.exit_code, "`penstock users passwd`" in twice.stderr) == (1, True)
    nobody = run("admin", "users", "delete", "nobody", "--yes")
    assert (nobody.exit_code, "`penstock users list`" in nobody.stderr) == (1, True)


def test_deleting_tells_what_is_left(run: As, carol: str) -> None:
    succeeded(run("admin", "acls", "add", carol, "read", "topic", "orders"))
    succeeded(run("admin", "roles", "grant", "reader", carol))
    gone = succeeded(run("admin", "users", "delete", carol, "--yes"))
    assert "1 access rule; `penstock acls remove --principal carol`" in gone.stderr
    assert "1 role; `penstock roles revoke ROLE carol`" in gone.stderr
    succeeded(run("admin", "acls", "remove", "--principal", carol, "--yes"))
    succeeded(run("admin", "roles", "revoke", "reader", carol))


# --- tokens


def test_a_token_is_printed_once_listed_without_its_secret_and_revoked(
    run: As, carol: str, secured: Broker
) -> None:
    made = succeeded(run(carol, "users", "token", "create", "--description", "nightly", "--expires", "90d"))
    token = made.stdout.strip()
    assert token.startswith("pst_")
    assert token not in made.stderr
    bearer = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{secured.http_url}/v1", headers=bearer).status_code == 200
    page = succeeded(run("admin", "users", "token", "list", carol)).stdout
    assert "nightly" in page
    assert token not in page
    [row] = answer(run(carol, "users", "token", "list", "--json"))
    assert row["expires_ms"] - row["created_ms"] == 90 * 86_400_000
    succeeded(run("admin", "users", "token", "revoke", row["token_id"], "--of", carol))
    assert httpx.get(f"{secured.http_url}/v1", headers=bearer).status_code == 401
    assert run(carol, "users", "token", "revoke", row["token_id"]).exit_code == 1
    whole = answer(run(carol, "users", "token", "create", "--json"))
    assert whole["token"].startswith(f"pst_{whole['token_id']}_")


# --- rules


def test_rules_are_added_listed_checked_and_removed(run: As, unique: Unique) -> None:
    name = unique("orders")
    succeeded(run("admin", "acls", "add", "alice", "write,DescribeConfigs", "topic", f"{name}.*"))
    rows = answer(run("admin", "acls", "list", "--principal", "alice", "--json"))
    assert {(row["operation"], row["name"], row["pattern_type"]) for row in rows} == {
        ("write", f"{name}.", "prefixed"),
        ("describe_configs", f"{name}.", "prefixed"),
    }
    assert f"{name}.*" in succeeded(run("admin", "acls", "list", "--match", f"{name}.eu")).stdout
    allowed = succeeded(run("admin", "acls", "check", "alice", "describe", "topic", f"{name}.eu"))
    assert allowed.stdout.startswith(f"allowed by the rule: ALLOW User:alice WRITE on topic {name}.*")
    gone = answer(
        run("admin", "acls", "remove", "--principal", "alice", "--operation", "write", "--yes", "--json")
    )
    assert [row["operation"] for row in gone] == ["write"]
    succeeded(run("admin", "acls", "remove", "--principal", "alice", "--yes"))


def test_a_check_that_is_denied_ends_with_1(run: As) -> None:
    denied = run("admin", "acls", "check", "alice", "alter", "cluster")
    assert (denied.exit_code, denied.stdout) == (1, "denied: no rule allows it\n")
    assert denied.stderr == ""
    as_json = run("admin", "acls", "check", "alice", "read", "topic", "orders", "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["allowed"]) == (1, False)
    admin = succeeded(run("admin", "acls", "check", "admin", "alter", "cluster"))
    assert admin.stdout == "allowed: User:admin is a super user\n"


def test_a_denial_wins_and_a_check_names_it(run: As) -> None:
    succeeded(run("admin", "acls", "add", "*", "read", "topic", "*"))
    succeeded(run("admin", "acls", "add", "alice", "read", "topic", "pay", "--deny", "--host", "10.0.0.0/8"))
    denied = run("admin", "acls", "check", "alice", "read", "topic", "pay", "--host", "10.1.2.3")
    assert denied.exit_code == 1
    assert "denied by the rule: DENY User:alice from 10.0.0.0/8 READ on topic pay" in denied.stdout
    succeeded(run("admin", "acls", "check", "alice", "read", "topic", "pay", "--host", "192.168.0.1"))
    succeeded(run("admin", "acls", "remove", "--type", "topic", "--yes"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "alice", "peek", "topic", "x"), "expected one of all, read"),
        (("add", "alice", "read", "topic"), "NAME is missing"),
        (("add", "alice", "read", "table", "x"), "is not one of 'topic'"),
        (("add", "alice", "read", "topic", "a*b", "--deny"), "a star stands for the rest of a name"),
        (("add", "alice", "read", "topic", "a**"), "a star stands for the rest of a name"),
        (("remove", "--yes"), "this would remove every rule"),
        (("remove", "--principal", "alice"), "add --yes"),
        (("list", "--name", "a", "--match", "b"), "exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_ends_with_2(run: As, words: tuple[str, ...], said: str) -> None:
    if words[0] == "remove":
        succeeded(run("admin", "acls", "add", "alice", "read", "topic", "x"))
    wrong = run("admin", "acls", *words, stdin="")
    assert wrong.exit_code == 2
    assert said in wrong.stderr
    succeeded(run("admin", "acls", "remove", "--type", "topic", "--yes"))


# --- roles


def test_roles_are_granted_for_patterns_and_explained(run: As) -> None:
    succeeded(run("admin", "roles", "grant", "writer", "alice", "orders.*"))
    [row] = answer(run("admin", "roles", "grants", "--principal", "alice", "--json"))
    assert (row["role"], row["name"], row["pattern_type"]) == ("writer", "orders.", "prefixed")
    assert "orders.*" in succeeded(run("admin", "roles", "grants")).stdout
    checked = succeeded(run("admin", "acls", "check", "alice", "write", "topic", "orders.eu"))
    assert "(role writer for prefix 'orders.')" in checked.stdout
    other = run("admin", "roles", "revoke", "writer", "alice")
    assert (other.exit_code, "`penstock roles grants`" in other.stderr) == (1, True)
    succeeded(run("admin", "roles", "revoke", "writer", "alice", "orders.*"))
    assert run("admin", "acls", "check", "alice", "write", "topic", "orders.eu").exit_code == 1


def test_a_role_of_ones_own(run: As) -> None:
    made = answer(
        run(
            "admin", "roles", "create", "cleaner", "topic:delete,describe:tmp.*", "cluster:describe", "--json"
        )
    )
    assert made["permissions"][0]["pattern_type"] == "prefixed"
    page = succeeded(run("admin", "roles", "list")).stdout
    assert "topic tmp.*: delete, describe" in page
    assert "operator" in page
    succeeded(run("admin", "roles", "grant", "cleaner", "alice"))
    held = run("admin", "roles", "delete", "cleaner", "--yes")
    assert (held.exit_code, "`penstock roles grants`" in held.stderr) == (1, True)
    succeeded(run("admin", "roles", "revoke", "cleaner", "alice"))
    succeeded(run("admin", "roles", "delete", "cleaner", "--yes"))
    assert run("admin", "roles", "create", "cleaner", "topic").exit_code == 2


def test_without_login_there_are_no_rules(cli: Callable[..., Result]) -> None:
    for words in (("acls", "list"), ("roles", "list")):
        refused = cli(*words)
        assert refused.exit_code == 1
        assert "`penstock serve --require-login`" in refused.stderr


@pytest.mark.parametrize("messages", [1, 200_000], ids=["one", "more than librdkafka queues"])
def test_produce_says_which_permission_is_missing(run: As, carol: str, unique: Unique, messages: int) -> None:
    topic = unique("orders")
    succeeded(run("admin", "topics", "create", topic))
    succeeded(run("admin", "acls", "add", carol, "describe", "topic", topic))
    result = run(carol, "produce", topic, stdin="x\n" * messages)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert f"it needs WRITE on the topic {topic}" in result.stderr


# --- secrets


def test_no_command_shows_a_password(run: As, carol: str, tmp_path: Path) -> None:
    results = [
        run(carol, "topics", "list"),
        run(carol, "users", "list"),
        run("admin", "users", "list"),
        run(carol, "produce", "orders", stdin="x\n"),
        run(carol, "users", "passwd", "--new-password-file", "-", stdin="short\n"),
        run(carol, "-X", "sasl.mechanism=GSSAPI", "topics", "list"),
        run(carol, "topics", "list", "-X", "sasl.mechanism=SCRAM-SHA-1"),
        run(carol, "topics", "list", "--tls"),
    ]
    shown = "".join(result.output + result.stderr for result in results)
    assert NEW not in shown
    assert "short" not in shown.replace("shortly", "")
    assert os.environ.get("PENSTOCK_PASSWORD") is None
