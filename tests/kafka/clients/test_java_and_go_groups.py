"""Java's consumer and franz-go's with the consumer protocol (KIP-848), alone and in a group with librdkafka."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.config import GroupSettings
from tests.kafka.clients.consumer_members import PATIENCE_SECONDS, make_topic, members_of, produce
from tests.kafka.programs.builds import franz_go_client, java_client
from tests.kafka.programs.pipe import Program

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

Unique = Callable[[str], str]
QUICK = GroupSettings(consumer_heartbeat_interval_ms=100, consumer_assignment_interval_ms=100)
PROGRAMS = {"java": java_client, "franz-go": franz_go_client}


@pytest.fixture(scope="module")
def quick() -> Iterator[Broker]:
    with Broker(groups=QUICK, http=None) as running:
        yield running


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_consumer_reads_a_topic_and_goes_on_where_it_committed(
    quick: Broker, unique: Unique, tmp_path: Path, name: str
) -> None:
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 4)
    admin = AdminClient({"bootstrap.servers": servers})
    with Program(PROGRAMS[name](), tmp_path / "program.log") as program:
        client = program.connect(bootstrap=servers)
        for numbers in (range(40), range(40, 80)):
            sent = produce(servers, topic, 4, numbers)
            read = client.consume(topic, group, len(sent), protocol="consumer")
            assert {value.encode() for value in read} == sent
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_SECONDS)
        assert group in {row.group_id for row in listed.valid}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_consumer_shares_a_group_with_librdkafka(
    quick: Broker, unique: Unique, tmp_path: Path, name: str, protocol: str
) -> None:
    """With the other protocol in one group, as in an online upgrade."""
    servers, group = quick.bootstrap_servers, unique("group")
    topic = make_topic(servers, unique("orders"), 4)
    with (
        Program(PROGRAMS[name](), tmp_path / "program.log") as program,
        ThreadPoolExecutor(1) as thread,
        members_of(servers, group, topic) as members,
    ):
        members.join()
        members.poll_until(lambda: members.has_shares(4))
        client = program.connect(bootstrap=servers)
        reading = thread.submit(client.consume, topic, group, 20, protocol=protocol)
        members.poll_until(lambda: members.has_shares(2))
        sent = produce(servers, topic, 4, range(40))
        members.poll_until(lambda: reading.done() and len(set(members.values)) >= 20)
        read = {value.encode() for value in reading.result()}
        assert read | set(members.values) == sent
