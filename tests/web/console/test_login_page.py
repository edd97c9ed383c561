"""Logging in on the page: who may see what, what a browser keeps of it, and what a reader may not change."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from penstock import Broker
from penstock.config import Limits
from penstock.node.access import logins
from tests.web.api.secured import PASSWORDS, caller
from tests.web.console.conftest import OpenPage, TakePicture


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logins, "FIRST_DELAY_SECONDS", 0.0)
        with Broker(users=PASSWORDS) as broker, caller(broker, "admin", PASSWORDS["admin"]) as admin:
            for name in ("news", "secrets"):
                admin.post("/v1/topics", json={"name": name}).raise_for_status()
            admin.post("/v1/grants", json={"role": "reader", "principal": "User:alice"}).raise_for_status()
            yield broker


def log_in(page: Page, user: str, password: str | None = None) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(PASSWORDS[user] if password is None else password)
    page.get_by_role("button", name="Log in", exact=True).click()


def stored(page: Page) -> dict[str, str]:
    return json.loads(page.evaluate("sessionStorage.getItem('penstock.session')"))


def test_a_user_logs_in_and_the_page_that_was_asked_for_appears(
    secured: Broker, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_page("topics/secrets", at=secured)
    expect(page.get_by_role("heading", name="Log in to Penstock")).to_be_visible()
    take_picture(page, "login")
    log_in(page, "admin")
    expect(page.get_by_role("heading", name="secrets")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="secrets")).to_be_visible()


def test_the_browser_keeps_a_token_and_not_the_password(secured: Broker, open_page: OpenPage) -> None:
    page = open_page("topics", at=secured)
    log_in(page, "admin")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert stored(page)["authorization"].startswith("Bearer pst_")
    assert PASSWORDS["admin"] not in json.dumps(page.evaluate("({...sessionStorage, ...localStorage})"))
    assert page.context.cookies() == []


def test_a_wrong_password_is_told(secured: Broker, open_page: OpenPage) -> None:
    page = open_page(at=secured)
    log_in(page, "admin", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("You are not logged in")


def test_logging_out_revokes_the_token(secured: Broker, open_page: OpenPage) -> None:
    page = open_page("topics", at=secured)
    log_in(page, "admin")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    authorization = stored(page)["authorization"]
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in to Penstock")).to_be_visible()
    answer = httpx.get(f"{secured.http_url}/v1/me", headers={"authorization": authorization})
    assert answer.status_code == 401


def test_a_login_replaces_the_oldest_token_of_the_console_and_says_why_if_there_is_none(
    open_page: OpenPage,
) -> None:
    with (
        Broker(users=PASSWORDS, limits=Limits(max_tokens_per_user=2)) as broker,
        caller(broker, "admin", PASSWORDS["admin"]) as admin,
    ):
        made = admin.post("/v1/users/admin/tokens", json={"description": "backup"}).json()["token_id"]
        pages = [open_page("topics", at=broker) for _ in range(2)]
        for page in pages:
            log_in(page, "admin")
            expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        tokens = admin.get("/v1/users/admin/tokens").json()["tokens"]
        assert [one["token_id"] for one in tokens] == [made, stored(pages[1])["tokenId"]]
        pages[1].get_by_role("button", name="Log out").click()
        expect(pages[1].get_by_role("heading", name="Log in to Penstock")).to_be_visible()
        admin.post("/v1/users/admin/tokens", json={"description": "another"}).raise_for_status()
        log_in(pages[1], "admin")
        expect(pages[1].get_by_role("heading", name="Topics")).to_be_visible()
        expect(pages[1].get_by_text("limits.max_tokens_per_user allows no more")).to_be_visible()


def test_a_login_revokes_no_token_unless_there_are_too_many(secured: Broker, open_page: OpenPage) -> None:
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        older = {"description": "web console", "lifetime_ms": 3_600_000}
        admin.post("/v1/users/admin/tokens", json=older).raise_for_status()
        before = admin.get("/v1/users/admin/tokens").json()
        page = open_page("topics", at=secured)
        refusal = {"error": {"code": "security_disabled", "message": "no tokens today", "field": None}}
        tokens = re.compile(r"/users/admin/tokens$")
        page.route(
            tokens,
            lambda route: (
                route.fulfill(status=409, json=refusal)
                if route.request.method == "POST"
                else route.continue_()
            ),
        )
        log_in(page, "admin")
        expect(page.get_by_text("No token could be made for it: no tokens today")).to_be_visible()
        assert admin.get("/v1/users/admin/tokens").json() == before


def test_a_login_that_ends_while_a_dialog_is_open_shows_the_login_alone(
    secured: Broker, open_page: OpenPage
) -> None:
    page = open_page("topics/news", at=secured)
    log_in(page, "admin")
    page.get_by_role("button", name="Add partitions").click()
    httpx.delete(
        f"{secured.http_url}/v1/users/admin/tokens/{stored(page)['tokenId']}",
        auth=("admin", PASSWORDS["admin"]),
    ).raise_for_status()
    page.get_by_role("dialog").locator("input").first.fill("2")
    page.get_by_role("dialog").locator("button[type=submit]").click()
    expect(page.get_by_role("heading", name="Log in to Penstock")).to_be_visible()
    expect(page.locator("dialog")).to_have_count(0)


def test_a_login_that_was_revoked_leads_to_the_login_and_says_so(
    secured: Broker, open_page: OpenPage
) -> None:
    page = open_page("topics", at=secured)
    log_in(page, "admin")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        admin.delete(f"/v1/users/admin/tokens/{stored(page)['tokenId']}").raise_for_status()
    expect(page.get_by_text("Your login has ended.")).to_be_visible()
    log_in(page, "admin")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in to Penstock")).to_be_visible()
    expect(page.get_by_text("Your login has ended.")).to_have_count(0)


def test_a_writer_who_may_not_read_gets_the_refusal_and_no_advice_about_filters(
    secured: Broker, open_page: OpenPage
) -> None:
    rule = {"principal": "User:bob", "resource_type": "topic", "name": "secrets"}
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        rules = [{**rule, "operation": operation} for operation in ("write", "describe")]
        admin.post("/v1/acls", json={"acls": rules}).raise_for_status()
        page = open_page("topics/secrets/messages", at=secured)
        log_in(page, "bob")
        expect(page.get_by_role("alert")).to_contain_text("You may not do this")
        expect(page.get_by_text("No messages to show")).not_to_be_visible()
        expect(page.get_by_role("button", name="Publish")).to_be_visible()
        for one in rules:
            admin.request("DELETE", "/v1/acls", params=one).raise_for_status()


def test_a_reader_sees_all_and_changes_nothing(secured: Broker, open_page: OpenPage) -> None:
    page = open_page("topics/news", at=secured)
    log_in(page, "alice")
    expect(page.get_by_role("cell", name="node 1").first).to_be_visible()
    for action in ("Delete", "Add partitions"):
        expect(page.get_by_role("button", name=action)).to_have_count(0)
    page.get_by_role("link", name="Messages").click()
    expect(page.get_by_role("button", name="Show", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Publish")).to_have_count(0)
    with caller(secured, "alice", PASSWORDS["alice"]) as alice:
        assert alice.delete("/v1/topics/news").status_code == 403


def test_a_refusal_of_the_api_is_told(secured: Broker, open_page: OpenPage) -> None:
    rule = {"principal": "User:alice", "operation": "create", "resource_type": "topic", "name": "alice."}
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        admin.post("/v1/acls", json={"acls": [{**rule, "pattern_type": "prefixed"}]}).raise_for_status()
    page = open_page("topics", at=secured)
    log_in(page, "alice")
    page.get_by_role("button", name="Create a topic").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("forbidden")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("You may not do this")
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        assert admin.get("/v1/topics/forbidden").status_code == 404


def test_a_user_without_rights_sees_no_topic_and_what_is_hidden_on_the_overview(
    secured: Broker, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_page("topics", at=secured)
    log_in(page, "bob")
    expect(page.get_by_text("There are no topics yet")).to_be_visible()
    expect(page.get_by_text("You may not create one")).to_be_visible()
    expect(page.get_by_role("button", name="Create a topic")).to_have_count(0)
    page.get_by_role("link", name="Queues").click()
    expect(page.get_by_text("There are no queues yet, or none that you may see")).to_be_visible()
    expect(page.get_by_role("button", name="Create a queue")).to_have_count(0)
    for name in ("Groups", "Subscriptions", "Cliques", "Transactions"):
        page.get_by_role("link", name=name).click()
        expect(page.locator(".empty-title").first).to_contain_text("or none that you may see")
    rule = {"principal": "User:bob", "operation": "describe", "resource_type": "topic", "name": "news"}
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        admin.post("/v1/acls", json={"acls": [rule]}).raise_for_status()
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".tile", has_text="Topics").locator(".value")).to_have_text("1")
    expect(page.locator(".tile", has_text="Queues").locator(".value")).to_have_text("0")
    expect(page.get_by_text("need the permission DESCRIBE on the cluster")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    take_picture(page, "overview-restricted")
