"""Fills the fixture `secured` of make_upgrade_fixtures.py: users, passwords, tokens, access rules, roles, quotas.

Half of them are in a snapshot of the metadata, the others behind it, since both have a format of their own on disk.
"""

from typing import Any

from tests.upgrade.secured import SecuredBroker

PASSWORDS = {"alice": "alice-password", "bob": "bob-password", "carol": "carol-password"}

Json = dict[str, Any]


def _rule(user: str, operation: str, name: str, **more: str) -> Json:
    return {
        "principal": f"User:{user}",
        "operation": operation,
        "resource_type": "topic",
        "name": name,
        **more,
    }


def _create_user(broker: SecuredBroker, user: str) -> None:
    broker.ask("POST", "/v1/users", {"user": user, "password": PASSWORDS[user]})


def fill(broker: SecuredBroker) -> Json:
    for user in ("alice", "bob"):
        _create_user(broker, user)
    kept = broker.ask("POST", "/v1/users/alice/tokens", {"description": "kept"})
    gone = broker.ask("POST", "/v1/users/alice/tokens", {"description": "revoked"})
    broker.ask("DELETE", f"/v1/users/alice/tokens/{gone['token_id']}")
    rules = [
        _rule("alice", "write", "orders"),
        _rule("alice", "read", "orders.", pattern_type="prefixed", host="10.1.0.0/16"),
        _rule("alice", "read", "orders.secret", permission="deny"),
        _rule("bob", "all", "*", host="127.0.0.1"),
        _rule("*", "describe", "public"),
    ]
    broker.ask("POST", "/v1/acls", {"acls": rules})
    broker.ask(
        "PUT",
        "/v1/roles/cleaner",
        {"permissions": [{"resource_type": "topic", "operations": ["delete", "describe"]}]},
    )
    broker.ask("POST", "/v1/grants", {"role": "cleaner", "principal": "User:bob"})
    grant = {"role": "reader", "principal": "Group:ops", "name": "orders.", "pattern_type": "prefixed"}
    broker.ask("POST", "/v1/grants", grant)
    broker.set_quotas({"user": "alice"}, producer_byte_rate=1_000_000.0, request_percentage=50.0)
    broker.set_quotas({"client_id": None}, consumer_byte_rate=2_000_000.0)
    return {
        "password": broker.password,
        "passwords": PASSWORDS,
        "token": kept["token"],
        "revoked": gone["token"],
    }


def fill_behind_snapshot(broker: SecuredBroker) -> Json:
    _create_user(broker, "carol")
    broker.ask("POST", "/v1/acls", {"acls": [_rule("carol", "write", "invoices")]})
    broker.ask("POST", "/v1/grants", {"role": "writer", "principal": "User:carol", "name": "invoices"})
    broker.set_quotas({"user": "carol", "client_id": "import"}, producer_byte_rate=3_000_000.0)
    broker.set_quotas({"user": "alice"}, request_percentage=None)
    checks = (
        ("User:alice", "write", "orders", True),
        ("User:alice", "read", "orders.secret", False),
        ("User:bob", "delete", "orders", True),
        ("User:carol", "write", "invoices", True),
        ("User:carol", "write", "orders", False),
    )
    return {"decisions": [list(one) for one in checks]}
