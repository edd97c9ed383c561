"""Users, tokens, access rules, roles and quotas that earlier versions stored hold in this one."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.client import LoginFailed
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.upgrade.secured import SECURED, SecuredBroker

pytestmark = pytest.mark.xdist_group("upgrade")

ARCHIVES = sorted((Path(__file__).parent / "fixtures").glob(f"*/{SECURED}.tar.xz"))
Json = dict[str, Any]


class Opened(SecuredBroker):
    """A fixture that this version serves, and what administrators saw of it before."""

    def __init__(self, folder: Path, before: Json) -> None:
        super().__init__(folder, before["password"])
        self.before = before


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.parent.name)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    archive: Path = request.param
    folder = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    with Opened(folder, json.loads(archive.with_name(f"{SECURED}.json").read_text())) as broker:
        yield broker


@pytest.fixture(autouse=True)
def as_admin(opened: Opened) -> None:
    opened.log_in("admin", opened.password)


def test_there_is_a_fixture() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("kind", ["users", "tokens", "acls", "roles", "grants", "quotas"])
def test_administrators_find_what_they_stored(opened: Opened, kind: str) -> None:
    found = opened.everything()[kind]
    if kind == "roles":  # this version may have built-in roles that the one before did not have
        known = {row["role"] for row in opened.before[kind]}
        found = [row for row in found if row["role"] in known or not row["built_in"]]
    assert found == opened.before[kind]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_log_in_with_their_passwords_and_with_no_others(opened: Opened, mechanism: str) -> None:
    for user, password in opened.before["passwords"].items():
        answer = opened.kafka(user, password, mechanism).call(ApiKey.METADATA, MetadataRequest(topics=[]))
        assert isinstance(answer, MetadataResponse)
    with pytest.raises(LoginFailed):
        opened.kafka("alice", "wrong-password", mechanism)


def test_a_token_is_good_and_a_revoked_one_is_not(opened: Opened) -> None:
    opened.login = {"Authorization": f"Bearer {opened.before['token']}"}
    opened.ask("GET", "/v1/topics")
    opened.login = {"Authorization": f"Bearer {opened.before['revoked']}"}
    with pytest.raises(AssertionError, match="401"):
        opened.ask("GET", "/v1/topics")


def test_rules_and_roles_decide_as_before(opened: Opened) -> None:
    for principal, operation, name, is_allowed in opened.before["decisions"]:
        asked = {"principal": principal, "operation": operation, "resource_type": "topic", "name": name}
        told = opened.ask("GET", f"/v1/acls/check?{urlencode(asked)}")
        assert (asked, told["allowed"]) == (asked, is_allowed)
