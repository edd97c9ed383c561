"""Ten thousand idle connections cost little memory, and active ones are served."""

import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.kafka.wire import ApiKey, decode_response, encode_request, join
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from tests.node.processes import BrokerProcess

CONNECTIONS = 10_000
SPARE_FILES = 500
BYTES_PER_CONNECTION_MAX = 20_000


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def count() -> Iterator[int]:
    """As many connections as the system lets one process open; restores the limit afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    hard = before[1] if before[1] != resource.RLIM_INFINITY else 1 << 20
    yield min(CONNECTIONS, hard - SPARE_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_idle_connections_cost_less_than_20_kb_each(process: BrokerProcess, count: int) -> None:
    host, port = process.bootstrap_servers.split(":")
    before = process.memory_bytes()
    idle = [socket.create_connection((host, int(port))) for _ in range(count)]
    request = join(encode_request(ApiKey.API_VERSIONS, 0, 9, "last", ApiVersionsRequest()))
    idle[-1].sendall(request)
    length = int.from_bytes(idle[-1].recv(4, socket.MSG_WAITALL), "big")
    answer = idle[-1].recv(length, socket.MSG_WAITALL)
    assert decode_response(ApiKey.API_VERSIONS, 0, answer)[0] == 9
    assert (process.memory_bytes() - before) / count < BYTES_PER_CONNECTION_MAX
    for connection in idle:
        connection.close()


def test_connections_cannot_use_up_the_file_descriptors_that_flushing_needs(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path / "data", files_max=200)
    running.start()
    try:
        host, port = running.bootstrap_servers.split(":")
        producer = Producer(
            {
                "bootstrap.servers": running.bootstrap_servers,
                "enable.idempotence": True,
                "message.timeout.ms": 60_000,
            }
        )
        idle = [socket.create_connection((host, int(port))) for _ in range(400)]
        failures: list[object] = []
        for partition in range(8):
            topic = f"topic-{partition}"
            producer.produce(
                topic, "x", on_delivery=lambda error, _: failures.append(error) if error else None
            )
        for connection in idle:
            connection.close()
        assert producer.flush(60) == 0
        assert failures == []
    finally:
        running.stop()
