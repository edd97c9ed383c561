"""Users and permissions in the browser: each job is done on the page, and checked by a client that logs in."""

from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, expect

from penstock import Broker
from penstock.node.access import logins
from tests.web.api.secured import PASSWORDS, caller, code
from tests.web.console.conftest import OpenPage, TakePicture
from tests.web.console.test_login_page import log_in

SECONDS = 60
HOSTILE = 'x"><img src=x onerror=alert(1)><script>alert(2)</script>'
AUDITOR = {"permissions": [{"resource_type": "cluster", "operations": ["describe"]}]}


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS) as broker, caller(broker, "admin", PASSWORDS["admin"]) as admin:
            admin.put("/v1/roles/auditor", json=AUDITOR).raise_for_status()
            admin.post("/v1/grants", json={"role": "auditor", "principal": "User:alice"}).raise_for_status()
            yield broker


@pytest.fixture
def admin(secured: Broker) -> Iterator[httpx.Client]:
    with caller(secured, "admin", PASSWORDS["admin"]) as client:
        yield client


def open_as(open_page: OpenPage, secured: Broker, user: str, path: str) -> Page:
    page = open_page(path, at=secured)
    log_in(page, user)
    return page


def kafka(secured: Broker, user: str, password: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": secured.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
    )


def test_a_user_is_created_given_a_role_and_deleted(
    secured: Broker, admin: httpx.Client, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_as(open_page, secured, "admin", "users")
    expect(page.get_by_role("link", name="alice")).to_be_visible()
    take_picture(page, "users")
    page.get_by_role("button", name="Create a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("carol")
    dialog.get_by_label("Password").fill("carol-password-1")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="carol")).to_be_visible()
    expect(page.get_by_text("It may do nothing", exact=True)).to_be_visible()
    carol = kafka(secured, "carol", "carol-password-1")
    with pytest.raises(KafkaException):
        carol.create_topics([NewTopic("carols", 1)])["carols"].result(SECONDS)
    page.get_by_role("button", name="Give a role").click()
    dialog.get_by_label("Role").select_option("operator")
    dialog.get_by_role("button", name="Give the role").click()
    expect(page.get_by_role("cell", name="role operator").first).to_be_visible()
    carol.create_topics([NewTopic("carols", 1)])["carols"].result(SECONDS)
    take_picture(page, "user")
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_label("Type").fill("carol")
    dialog.get_by_role("button", name="Delete the user").click()
    expect(page.get_by_role("heading", name="Users and permissions")).to_be_visible()
    assert "carol" not in [one["user"] for one in admin.get("/v1/users").json()["users"]]


def test_the_page_says_what_a_user_may_do_and_why(
    secured: Broker, admin: httpx.Client, open_page: OpenPage
) -> None:
    grant = {"role": "reader", "principal": "User:bob", "name": "orders.", "pattern_type": "prefixed"}
    admin.post("/v1/grants", json=grant).raise_for_status()
    page = open_as(open_page, secured, "admin", "users/bob")
    expect(page.get_by_role("cell", name="role reader for prefix 'orders.'").first).to_be_visible()
    form = page.locator("field-form")
    form.get_by_label("Operation").select_option("read")
    form.get_by_label("Name").fill("orders.new")
    form.get_by_role("button", name="Ask").click()
    expect(page.locator(".decision")).to_contain_text("allowed by the rule")
    form.get_by_label("Operation").select_option("write")
    form.get_by_role("button", name="Ask").click()
    expect(page.locator(".decision")).to_contain_text("no rule allows it")


def test_access_rules_are_added_and_removed(
    secured: Broker, admin: httpx.Client, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_as(open_page, secured, "admin", "users?part=rules")
    page.get_by_role("button", name="Add a rule").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Who").fill("User:dave")
    dialog.get_by_label("Permission").select_option("deny")
    dialog.get_by_label("Operation").select_option("write")
    dialog.get_by_label("Name optional").fill("secrets.")
    dialog.get_by_label("All names that begin so").check()
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("cell", name="secrets.…")).to_be_visible()
    rules = admin.get("/v1/acls", params={"principal": "User:dave"}).json()["acls"]
    assert [(one["permission"], one["pattern_type"], one["name"]) for one in rules] == [
        ("deny", "prefixed", "secrets.")
    ]
    page.get_by_role("button", name="Remove the rule").click()
    dialog.get_by_role("button", name="Remove the rule").click()
    expect(page.get_by_text("There are no access rules")).to_be_visible()
    assert admin.get("/v1/acls", params={"principal": "User:dave"}).json()["acls"] == []
    page.get_by_role("link", name="Roles").click()
    expect(page.get_by_role("cell", name="auditor").first).to_be_visible()
    take_picture(page, "roles")


def test_a_role_of_ones_own_is_created_and_deleted(
    secured: Broker, admin: httpx.Client, open_page: OpenPage
) -> None:
    page = open_as(open_page, secured, "admin", "users?part=roles")
    page.get_by_role("button", name="Create a role").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("billing")
    dialog.get_by_label("Permissions").fill("topic read,describe\ngroup sing bill*")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text("expected")
    dialog.get_by_label("Permissions").fill("topic read,describe\ngroup read bill*")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_text("read on group bill…")).to_be_visible()
    made = next(one for one in admin.get("/v1/roles").json()["roles"] if one["role"] == "billing")
    assert made["permissions"][1]["pattern_type"] == "prefixed"
    page.get_by_role("button", name="Delete the role billing").click()
    dialog.get_by_role("button", name="Delete the role").click()
    expect(page.get_by_text("The role billing was deleted.")).to_be_visible()
    assert "billing" not in [one["role"] for one in admin.get("/v1/roles").json()["roles"]]


def test_a_token_is_shown_once_and_revoked(secured: Broker, admin: httpx.Client, open_page: OpenPage) -> None:
    page = open_as(open_page, secured, "admin", "users/bob")
    page.get_by_role("button", name="Make a token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Description").fill("nightly job")
    dialog.get_by_role("button", name="Make the token").click()
    token = page.get_by_label("Token", exact=True).input_value()
    bearer = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{secured.http_url}/v1/me", headers=bearer).json()["principal"] == "User:bob"
    page.get_by_role("button", name="Done").click()
    row = page.locator("tr", has_text="nightly job")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke the token").click()
    expect(page.get_by_text("The token was revoked.")).to_be_visible()
    assert httpx.get(f"{secured.http_url}/v1/me", headers=bearer).status_code == 401


def test_somebody_who_may_only_look_sees_everything_and_no_button(
    secured: Broker, admin: httpx.Client, open_page: OpenPage
) -> None:
    page = open_as(open_page, secured, "alice", "users")
    expect(page.get_by_role("link", name="bob")).to_be_visible()
    expect(page.get_by_text("You may look at users and permissions")).to_be_visible()
    expect(page.get_by_role("button", name="Create a user")).to_have_count(0)
    page.get_by_role("link", name="bob").click()
    expect(page.get_by_role("heading", name="What may this user do, and why?")).to_be_visible()
    for name in ("Delete", "Set a password", "Give a role", "Take", "Make a token"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    with caller(secured, "alice", PASSWORDS["alice"]) as alice:
        assert code(alice.delete("/v1/users/bob"))[0] == 403
    page.get_by_role("link", name="Cluster").click()
    expect(page.get_by_text("You may look at the cluster")).to_be_visible()
    expect(page.get_by_role("button", name="Rebalance")).to_have_count(0)


def test_somebody_without_rights_sees_no_user(secured: Broker, open_page: OpenPage) -> None:
    page = open_as(open_page, secured, "bob", "users")
    expect(page.get_by_role("alert")).to_contain_text("You may not do this")
    expect(page.get_by_role("link", name="alice")).to_have_count(0)


def test_names_that_are_html_are_shown_as_text(
    secured: Broker, admin: httpx.Client, open_page: OpenPage
) -> None:
    admin.post("/v1/users", json={"user": HOSTILE, "password": "some-password-1"}).raise_for_status()
    page = open_as(open_page, secured, "admin", "users")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    assert page.locator("img[src=x], main script, dialog script").count() == 0
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text(HOSTILE)
    assert page.locator("img[src=x], main script, dialog script").count() == 0


def test_without_login_the_page_says_that_everybody_may_do_everything(open_page: OpenPage) -> None:
    page = open_page("users")
    expect(page.get_by_text("This broker requires no login")).to_be_visible()
    expect(page.get_by_text("There are no users yet")).to_be_visible()
