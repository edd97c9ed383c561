"""A broker that requires login, and callers of its web API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from penstock import Broker

PASSWORDS = {
    "admin": "admin-password-1",
    "alice": "alice-password-1",
    "bob": "bob-password-1",
}

Login = Callable[[str], httpx.Client]


@contextmanager
def logins(broker: Broker) -> Iterator[Login]:
    """Callers by user."""
    clients: list[httpx.Client] = []

    def login(user: str) -> httpx.Client:
        clients.append(caller(broker, user, PASSWORDS[user]))
        return clients[-1]

    try:
        yield login
    finally:
        for client in clients:
            client.close()


def caller(broker: Broker, user: str, password: str) -> httpx.Client:
    return httpx.Client(base_url=broker.http_url, auth=(user, password), timeout=30)


def bearer(broker: Broker, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=broker.http_url, headers=headers, timeout=30)


def code(answer: httpx.Response) -> tuple[int, str]:
    """The status and the code of a refusal."""
    return answer.status_code, answer.json()["error"]["code"]


def message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


REFUSED = (403, "cluster_authorization_failed")
