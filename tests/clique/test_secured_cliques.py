"""Cliques on brokers that require login and TLS."""

import asyncio
from collections.abc import Iterator

import pytest

from penstock.client import LoginFailed
from penstock.clique import BlockingClique, Clique, Message, Slot
from penstock.clique.carriers import PenstockCarrier, described, nats_options, secured
from tests.secured import PASSWORDS, SecuredNode, secured_node

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node")) as running:
        yield running


async def handles_a_message(clique: Clique, stream: str) -> None:
    handled = asyncio.Event()

    @clique.handler(stream)
    async def handle(message: Message, slot: Slot) -> None:
        handled.set()

    async with clique:
        await clique.publish(stream, b"one", key=b"k")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await handled.wait()


def test_a_clique_logs_in(node: SecuredNode, unique) -> None:
    address = f"penstock://{node.address('tls')}"
    clique = Clique(unique("pricing"), address, **node.arguments("admin"))
    asyncio.run(handles_a_message(clique, unique("orders")))


def test_the_login_may_be_in_the_address_which_is_never_shown_with_it(node: SecuredNode, unique) -> None:
    address = f"penstock://admin:{PASSWORDS['admin']}@{node.address('tls')}"
    clique = Clique(unique("pricing"), address, tls_ca=node.certificates.ca)
    asyncio.run(handles_a_message(clique, unique("orders")))
    assert PASSWORDS["admin"] not in f"{clique!r} {clique.status()}"


@pytest.mark.usefixtures("gives_up_soon")
def test_a_wrong_password_ends_the_start(node: SecuredNode, unique) -> None:
    clique = BlockingClique(
        unique("pricing"), f"penstock://{node.address('tls')}", **node.arguments("admin", "wrong-password")
    )

    @clique.handler("orders")
    def handle(message: Message, slot: Slot) -> None: ...

    with pytest.raises(LoginFailed, match="does not accept the login"):
        clique.start()


def test_an_address_gives_user_and_password() -> None:
    carrier = secured("penstock://al%40ice:p%3Ass@a:1,b:2", {"tls": True})
    assert isinstance(carrier, PenstockCarrier)
    assert carrier._security == {"user": "al@ice", "password": "p:ss", "tls": True}
    assert repr(carrier) == "penstock://a:1,b:2" == described("penstock://al%40ice:p%3Ass@a:1,b:2")


def test_settings_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(TypeError, match="user, password: memory://a has no login"):
        secured("memory://a", {"user": "alice", "password": "x"})
    with pytest.raises(TypeError, match="the address has them already"):
        secured("penstock://alice:x@a:1", {"user": "alice"})
    with pytest.raises(TypeError, match="has its own settings"):
        secured(PenstockCarrier("a:1"), {"user": "alice"})
    with pytest.raises(TypeError, match="pasword"):
        Clique("pricing", "memory://a", pasword="x")  # type: ignore[call-arg]


def test_nats_gets_the_same_settings() -> None:
    options = nats_options({"user": "alice", "password": "x", "token": "t", "tls": True})
    assert {name: options[name] for name in ("user", "password", "token")} == {
        "user": "alice",
        "password": "x",
        "token": "t",
    }
    assert options["tls"].check_hostname
