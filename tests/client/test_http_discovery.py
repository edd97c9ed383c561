"""The address of a node's HTTP port, as the node announces it and as a client discovers it."""

import pytest

from penstock import Broker
from penstock.client import Client, Denied
from penstock.config import Address, NodeConfig
from penstock.config.broker import static_broker_configs


@pytest.mark.parametrize(
    ("http", "told"),
    [
        (Address("10.0.0.5", 8080), "http://10.0.0.5:8080"),
        (Address("0.0.0.0", 8080), "http://broker.example:8080"),
        (Address("::", 8080), "http://broker.example:8080"),
        (None, ""),
    ],
)
def test_a_node_says_where_its_http_port_is_reached(http: Address | None, told: str) -> None:
    config = NodeConfig(http=http, advertise=Address("broker.example", 9092))
    assert static_broker_configs(config)["penstock.http.url"] == told


def test_a_client_finds_it(broker: Broker, client: Client) -> None:
    assert client._find_urls() == [broker.http_url]


def test_a_configured_http_address_takes_precedence(broker: Broker) -> None:
    with Client(broker.bootstrap_servers, http=["http://proxy/a", "http://proxy/b"]) as client:
        assert client._find_urls() == ["http://proxy/a", "http://proxy/b"]


def test_a_broker_without_one_is_an_error_that_says_what_to_do() -> None:
    with Broker(http=None) as broker, Client(broker.bootstrap_servers) as client:
        with pytest.raises(Denied, match="--http"):
            client.queue("orders", group="workers").receive(60)
        with pytest.raises(Denied, match="--http"):
            client.admin.queues()
