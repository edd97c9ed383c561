"""The carriers that the conformance tests run on."""

from collections.abc import Callable, Iterator

import pytest

from penstock import Broker
from penstock.clique.guarantees import LEVELS, Level
from tests.clique.nats_server import NatsServer
from tests.clique.world import LONG_LEASE_MS, World

CARRIERS: dict[str, Level] = {
    "memory": "at-least-once",
    "nats": "one-owner",
    "core-nats": "best-effort",
    "penstock": "durable",
}
"""The guarantee that each gives."""
LONG = frozenset({"core-nats"})
"""test_gossip_cliques.py has the short tests of it."""
GOSSIP_LEASE_MS = 2_000
"""A newcomer waits for most of a lease before it takes a share."""


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server with JetStream that tests share: each uses subjects and cliques of its own."""
    with NatsServer(tmp_path_factory.mktemp("nats"), jetstream=True) as server:
        yield server


@pytest.fixture(scope="session")
def core_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The same without JetStream."""
    with NatsServer(tmp_path_factory.mktemp("core-nats"), jetstream=False) as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A conformance test runs on every carrier that can give the guarantee which its module needs."""
    if "carrier" in metafunc.fixturenames:
        needed = getattr(metafunc.module, "NEEDED", "best-effort")
        able = [name for name, level in CARRIERS.items() if LEVELS.index(level) >= LEVELS.index(needed)]
        marked = [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in able]
        metafunc.parametrize("carrier", marked, indirect=True)


@pytest.fixture
def carrier(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> str:
    """The address of a carrier."""
    match request.param:
        case "memory":
            return f"memory://{unique('hub')}"
        case "nats":
            server: NatsServer = request.getfixturevalue("nats_server")
            return server.address
        case "core-nats":
            core_server: NatsServer = request.getfixturevalue("core_nats_server")
            return core_server.address
        case "penstock":
            broker: Broker = request.getfixturevalue("broker")
            return f"penstock://{broker.bootstrap_servers}"
    raise AssertionError(request.param)


@pytest.fixture
def world(request: pytest.FixtureRequest, carrier: str, unique: Callable[[str], str]) -> World:
    is_gossip = request.node.callspec.params["carrier"] == "core-nats"
    lease_ms = GOSSIP_LEASE_MS if is_gossip else LONG_LEASE_MS
    return World(carrier, unique("pricing"), unique("orders"), lease_ms=lease_ms)
