"""The files of the console as a browser gets them: addresses, headers, sizes, and who may have them."""

import gzip
import re
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from penstock import Broker
from penstock.web.console_files import FOLDER, load_files
from tests.web.api.secured import PASSWORDS, caller

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users=PASSWORDS) as broker:
        yield broker


def base_of(answer: httpx.Response) -> str:
    return answer.text.partition('<base href="')[2].partition('"')[0]


def test_a_browser_is_led_to_the_console_and_a_program_is_not(http: httpx.Client) -> None:
    led = http.get("/", headers=BROWSER)
    assert (led.status_code, led.headers["location"]) == (302, "console/")
    assert "/console/" in http.get("/").json()["paths"]
    assert http.get("/console").headers["location"] == "console/"


def test_the_embedded_broker_tells_its_address(broker: Broker) -> None:
    assert httpx.get(broker.console_url).status_code == 200


@pytest.mark.parametrize(
    ("path", "base"),
    [("", "./"), ("topics", "./"), ("topics/orders", "../"), ("topics/orders/messages", "../../")],
)
def test_every_address_gets_the_shell_and_the_way_back(http: httpx.Client, path: str, base: str) -> None:
    assert base_of(http.get(f"/console/{path}")) == base


def test_a_slash_within_a_name_does_not_count(http: httpx.Client) -> None:
    assert base_of(http.get("/console/groups/a%2Fb")) == "../"


def test_a_browser_that_has_the_file_gets_no_second_copy(http: httpx.Client) -> None:
    for path in ("/console/", "/console/static/main.js"):
        first = http.get(path)
        again = http.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_shell_names_the_modules_that_pages_share_so_that_a_browser_gets_them_at_once(
    http: httpx.Client,
) -> None:
    named = re.findall(r'<link rel="modulepreload" href="([^"]+)">', http.get("/console/").text)
    shared = [path for folder in ("elements", "lib") for path in (FOLDER / "static" / folder).iterdir()]
    assert sorted(named) == sorted(
        ["static/pages.js", *(path.relative_to(FOLDER).as_posix() for path in shared)]
    )
    for path in named:
        assert http.get(f"/console/{path}").status_code == 200


def test_scripts_of_others_are_forbidden(http: httpx.Client) -> None:
    for path in ("/console/", "/console/static/main.js"):
        headers = http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_only_files_of_the_console_are_served(http: httpx.Client) -> None:
    for path in ("static/missing.js", "static/../../app.py", "static/%2e%2e/%2e%2e/app.py", "static/"):
        assert http.get(f"/console/{path}").status_code in (200, 404)
        assert "import asyncio" not in http.get(f"/console/{path}").text
    assert http.get("/console/static/missing.js").json()["error"]["code"] == "not_found"


def test_the_whole_console_is_small() -> None:
    assert sum(len(file.compressed) for file in load_files().values()) < 100_000


def test_the_files_hold_no_foreign_address_and_no_html_from_text() -> None:
    for path in FOLDER.rglob("*.js"):
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "//cdn"):
            assert word not in text, f"{path.name} has {word}"


def test_files_are_compressed_for_those_who_ask(http: httpx.Client) -> None:
    plain = http.get("/console/static/style.css", headers={"accept-encoding": "identity"})
    with http.stream("GET", "/console/static/style.css", headers={"accept-encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed) == plain.content


# --- where login is required


def test_the_files_need_no_login_and_the_api_does(secured: Broker) -> None:
    with httpx.Client(base_url=secured.http_url) as nobody:
        assert nobody.get("/console/").status_code == 200
        assert nobody.get("/console/static/main.js").status_code == 200
        assert nobody.get("/", headers=BROWSER).status_code == 302
        assert nobody.get("/").status_code == 401
        assert nobody.get("/v1/me").status_code == 401


def test_a_link_on_another_site_opens_the_console_and_not_the_api(http: httpx.Client) -> None:
    foreign = {"sec-fetch-site": "cross-site"}
    assert http.get("/console/topics", headers=foreign).status_code == 200
    assert http.get("/v1/topics", headers=foreign).status_code == 403


def test_a_token_may_be_the_subprotocol_of_a_websocket(secured: Broker) -> None:
    with caller(secured, "admin", PASSWORDS["admin"]) as admin:
        token = admin.post("/v1/users/admin/tokens", json={}).json()["token"]
    url = secured.http_url.replace("http", "ws") + "/v1/push"
    with connect(url, subprotocols=["penstock", f"bearer.{token}"]) as socket:
        assert socket.subprotocol == "penstock"
    for protocols in (["penstock"], ["penstock", "bearer.pst_wrong"]):
        with pytest.raises(InvalidStatus) as refused, connect(url, subprotocols=protocols):
            pass
        assert refused.value.response.status_code == 401


def test_a_token_revokes_itself_and_no_other(secured: Broker) -> None:
    with caller(secured, "alice", PASSWORDS["alice"]) as alice:
        mine, other = (alice.post("/v1/users/alice/tokens", json={}).json() for _ in range(2))
    with httpx.Client(
        base_url=secured.http_url, headers={"authorization": f"Bearer {mine['token']}"}
    ) as page:
        assert page.get("/v1/me").json()["token_id"] == mine["token_id"]
        assert page.delete(f"/v1/users/alice/tokens/{other['token_id']}").status_code == 403
        assert page.delete(f"/v1/users/alice/tokens/{mine['token_id']}").status_code == 204
        assert page.get("/v1/me").status_code == 401
