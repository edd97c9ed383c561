"""Java's consumer with `group.protocol=consumer` and franz-go's read as members of groups of KIP-848."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from penstock import Broker
from tests.kafka.programs.builds import franz_go_client, java_client
from tests.kafka.programs.pipe import Program

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

Unique = Callable[[str], str]
PROGRAMS = {"java": java_client, "franz-go": franz_go_client}
PATIENCE_SECONDS = 60


@pytest.mark.parametrize("client", PROGRAMS)
def test_a_group_of_kip_848_reads_goes_on_at_its_offset_and_is_listed(
    client: str, broker: Broker, unique: Unique, tmp_path: Path
) -> None:
    topic, group = unique("orders"), unique("group")
    with Program(PROGRAMS[client](), tmp_path / "log") as program:
        member = program.connect(bootstrap=broker.bootstrap_servers, protocol="consumer")
        member.create(topic)
        for value in ("one", "two", "three", "four"):
            member.produce(topic, value)
        assert member.consume(topic, group, 4) == ["one", "two", "three", "four"]
        member.produce(topic, "five")
        assert member.consume(topic, group, 1) == ["five"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups(request_timeout=PATIENCE_SECONDS).result(PATIENCE_SECONDS).valid
    [found] = [one for one in listed if one.group_id == group]
    assert found.type == ConsumerGroupType.CONSUMER
