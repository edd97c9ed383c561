"""A Java client whose broker's address has become that of another cluster starts again from its bootstrap servers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from tests.kafka.programs.builds import java_client
from tests.kafka.programs.pipe import Program
from tests.kafka.raw import RawClient
from tests.kafka.requests import create, read

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]


def test_java_finds_the_cluster_that_has_taken_over_an_address(
    unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, log = unique("orders"), tmp_path / "java.log"
    with Program(java_client(log_level="info"), log) as program:
        with Broker(http=None) as first:
            address = first.bootstrap_servers
            client = program.connect(bootstrap=address)
            assert client.produce(topic, "to the first") == 0
        with Broker(http=None, kafka=address, node_id=2) as second, RawClient(second) as raw:
            create(raw, topic, replicas=1)
            assert client.produce(topic, "to the second") == 0
            assert b"to the second" in bytes(read(raw, topic).records or b"")
    assert "Rebootstrap requested by server" in log.read_text()
