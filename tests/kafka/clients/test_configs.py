"""DescribeConfigs and IncrementalAlterConfigs, compared with the answers of Apache Kafka 4.2.1.

`kafka_4_2_1_configs.json` has Kafka's own answers: for a topic and a group without configs, and for a broker that was
started with its defaults. Each row has type, value, source, whether it is read-only, and the synonyms with their values
and sources.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, NewTopic, ResourceType
from confluent_kafka.admin import ConfigResource as ConfluentResource
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, ConfigSourceType, ConfigType

from penstock import Broker
from penstock.config import ShareGroupSettings
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import describe_configs as describing
from tests.kafka.clients.queues import configure, publish, take, worker
from tests.kafka.raw import RawClient, Reachable
from tests.kafka.requests import ask
from tests.kafka.trio import Trio

Unique = Callable[[str], str]
Synonym = tuple[str, str | None, str]
Row = tuple[str, str | None, str, bool, list[Synonym]]
"""Type, value, source, whether it is read-only, and synonyms."""
PATIENCE_SECONDS = 60.0
PATIENCE_MS = 60_000
TOPIC, GROUP, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.GROUP, ConfigResourceType.BROKER
OF_TOPIC, OF_GROUP = ConfigSourceType.DYNAMIC_TOPIC_CONFIG.name, ConfigSourceType.DYNAMIC_GROUP_CONFIG.name
STATIC, DEFAULT = ConfigSourceType.STATIC_BROKER_CONFIG.name, ConfigSourceType.DEFAULT_CONFIG.name
KAFKA: dict[str, dict[str, list[Any]]] = json.loads(
    (Path(__file__).parent / "kafka_4_2_1_configs.json").read_text()
)

OTHER_VALUES = {
    "group.initial.rebalance.delay.ms",  # 0 in an embedded broker
    "group.max.size",
    "group.share.max.heartbeat.interval.ms",
    "group.share.max.record.lock.duration.ms",
    "group.share.max.session.timeout.ms",
    "group.share.max.share.sessions",
    "group.share.max.size",
    "group.share.min.heartbeat.interval.ms",
    "group.share.min.record.lock.duration.ms",
    "group.share.min.session.timeout.ms",
    "group.share.partition.max.record.locks",
    "max.connections",
    "offsets.topic.replication.factor",  # that Kafka was started with 1
}
"""Broker configs whose values are Penstock's own. docs/compatibility.md names them."""


def since(kind: str, value: str, synonym: str) -> Row:
    """The row of a topic config that has its default."""
    return kind, value, DEFAULT, False, [(synonym, value, DEFAULT)] if synonym else []


SINCE_4_2 = {
    "errors.deadletterqueue.group.enable": since("BOOLEAN", "false", ""),
    "max.decompressed.message.bytes": since("INT", "2147483647", "max.decompressed.message.bytes"),
    "remote.copy.lag.bytes": since("LONG", "0", "log.remote.copy.lag.bytes"),
    "remote.copy.lag.ms": since("LONG", "0", "log.remote.copy.lag.ms"),
}
"""Topic configs that Kafka 4.4 has and 4.2.1 had not."""


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def topic(admin: AdminClient, unique: Unique) -> str:
    return created(admin, unique("orders"))


def created(admin: AdminClient, name: str, **configs: str) -> str:
    """A topic; an underscore stands for a dot."""
    texts = {config.replace("_", "."): value for config, value in configs.items()}
    admin.create_topics([NewTopic(name, config=texts)])[name].result(PATIENCE_SECONDS)
    return name


def described(broker: Reachable, kind: ConfigResourceType, name: str) -> dict[str, Row]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=PATIENCE_MS)
    try:
        resource = ConfigResource(kind, name)
        found = client.describe_configs([resource], include_synonyms=True, config_filter="all")
    finally:
        client.close()
    return {each: row(facts) for each, facts in found[kind.name.lower()][name].items()}


def row(facts: Mapping[str, Any]) -> Row:
    synonyms = [(each["name"], each["value"], each["source"]) for each in facts["synonyms"]]
    return facts["config_type"], facts["value"], facts["config_source"], facts["read_only"], synonyms


def in_kafka(kind: str) -> dict[str, Row]:
    """As `described`."""
    rows: dict[str, Row] = {}
    for name, (kind_of_value, value, source, read_only, synonyms) in KAFKA[kind].items():
        others = [(each, other, ConfigSourceType(where).name) for each, other, where in synonyms]
        rows[name] = ConfigType(kind_of_value).name, value, ConfigSourceType(source).name, read_only, others
    return rows


def change(admin: AdminClient, kind: ResourceType, resource: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfluentResource(kind, resource, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(PATIENCE_SECONDS)


# --- as Kafka shows them


def test_a_topic_has_kafkas_configs_with_their_types_sources_and_synonyms(broker: Broker, topic: str) -> None:
    found = described(broker, TOPIC, topic)
    own = {name for name in found if name.startswith("penstock.") or name == "dedup.window.ms"}
    assert {name: found[name] for name in found.keys() - own} == in_kafka("topic") | SINCE_4_2


def test_a_broker_has_kafkas_configs_with_their_types_sources_and_synonyms(broker: Broker) -> None:
    found, expected = described(broker, BROKER, "1"), in_kafka("broker")
    names = expected.keys() - OTHER_VALUES
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}
    assert {name: found[name][0] for name in OTHER_VALUES} == {
        name: expected[name][0] for name in OTHER_VALUES
    }
    assert all(found[name][3] for name in OTHER_VALUES), "they change with the config file"


def test_all_brokers_together_have_the_number_of_in_sync_replicas(broker: Broker) -> None:
    """No Python client can ask for all brokers."""
    resource = describing.DescribeConfigsResource(resource_type=BROKER, resource_name="")
    request = describing.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    with RawClient(broker) as client:
        answer = ask(client, ApiKey.DESCRIBE_CONFIGS, 4, request, describing.DescribeConfigsResponse)
    found = {
        one.name: [one.config_type, one.value, one.config_source, one.read_only]
        for one in answer.results[0].configs
    }
    assert found == {name: facts[:4] for name, facts in KAFKA["all_brokers"].items()}


def test_a_group_has_kafkas_configs_with_their_types_sources_and_synonyms(
    broker: Broker, unique: Unique
) -> None:
    group = unique("workers")
    found, expected = described(broker, GROUP, group), in_kafka("group")
    assert {name: found[name] for name in expected} == expected
    configure(broker.bootstrap_servers, group, share_record_lock_duration_ms="25000")
    name = "share.record.lock.duration.ms"
    own = [(name, "25000", OF_GROUP)]
    assert described(broker, GROUP, group)[name] == ("INT", "25000", OF_GROUP, False, own)


@pytest.fixture
def configured() -> Iterator[Broker]:
    """A broker whose topics and groups have other defaults."""
    settings = ShareGroupSettings(
        record_lock_duration_ms=20_000,
        min_record_lock_duration_ms=15_000,
        max_record_lock_duration_ms=60_000,
        min_session_timeout_ms=45_000,
        max_heartbeat_interval_ms=15_000,
        delivery_count_limit=2,
        partition_max_record_locks=2_000,
    )
    defaults = {"retention.ms": "1000000", "segment.bytes": "2000000", "dedup.window.ms": "60000"}
    with Broker(topic_defaults=defaults, share_groups=settings) as running:
        yield running


def test_defaults_that_a_broker_was_started_with_are_shown_as_kafka_shows_them(
    configured: Broker, unique: Unique
) -> None:
    admin = AdminClient({"bootstrap.servers": configured.bootstrap_servers})
    found = described(configured, TOPIC, created(admin, unique("orders")))
    retention = [("log.retention.ms", "1000000", STATIC), ("log.retention.hours", "168", DEFAULT)]
    assert found["retention.ms"] == ("LONG", "1000000", STATIC, False, retention)
    assert found["segment.bytes"][1:3] == ("2000000", STATIC)
    assert found["dedup.window.ms"][1:3] == ("60000", STATIC)
    broker = described(configured, BROKER, "1")
    assert broker["log.retention.ms"] == ("LONG", "1000000", STATIC, False, retention)
    assert broker["log.retention.hours"][1:3] == ("168", DEFAULT)
    own = described(configured, TOPIC, created(admin, unique("short"), retention_ms="5"))
    shown = [("retention.ms", "5", OF_TOPIC), *retention]
    assert own["retention.ms"] == ("LONG", "5", OF_TOPIC, False, shown)


# --- refusals


@pytest.mark.parametrize("name", ["no.such.config", "retentionms", "message.format.version"])
def test_an_unknown_topic_config_is_refused_in_kafkas_words(
    name: str, admin: AdminClient, topic: str, unique: Unique
) -> None:
    words = f"Unknown topic config name: {name}"
    with pytest.raises(KafkaException) as creating:
        created(admin, unique("orders"), **{name.replace(".", "_"): "1"})
    assert creating.value.args[0].str() == words
    with pytest.raises(KafkaException) as altering:
        change(admin, ResourceType.TOPIC, topic, name, "1")
    assert altering.value.args[0].str() == words


def test_an_unknown_broker_config_is_refused_where_kafka_would_store_it(admin: AdminClient) -> None:
    with pytest.raises(KafkaException, match=r"no\.such\.config"):
        change(admin, ResourceType.BROKER, "1", "no.such.config", "1")


# --- settings of all share groups


def test_a_broker_shows_the_settings_of_its_share_groups(configured: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": configured.bootstrap_servers})
    found = described(configured, BROKER, "1")
    name = "group.share.record.lock.duration.ms"
    shown = [(name, "20000", STATIC), (name, "30000", DEFAULT)]
    assert found[name] == ("INT", "20000", STATIC, True, shown)
    assert found["group.share.min.record.lock.duration.ms"][1:3] == ("15000", STATIC)
    assert found["group.share.delivery.count.limit"][1:3] == ("2", STATIC)
    assert found["group.share.session.timeout.ms"][1:3] == ("45000", DEFAULT)
    with pytest.raises(KafkaException, match="cannot change while the node runs"):
        change(admin, ResourceType.BROKER, "1", name, "25000")


def test_groups_have_the_brokers_defaults(configured: Broker, unique: Unique) -> None:
    found = described(configured, GROUP, unique("workers"))
    name = "share.record.lock.duration.ms"
    assert found[name] == ("INT", "20000", DEFAULT, False, [(name, "20000", DEFAULT)])
    assert found["share.partition.max.record.locks"][1] == "2000"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "record.lock.duration",
            "14999",
            r"greater than or equal to group\.share\.min\.record\.lock\.duration",
        ),
        ("record.lock.duration", "60001", r"less than or equal to group\.share\.max\.record\.lock\.duration"),
        ("session.timeout", "44999", r"greater than or equal to group\.share\.min\.session\.timeout"),
        ("heartbeat.interval", "15001", r"less than or equal to group\.share\.max\.heartbeat\.interval"),
    ],
)
def test_a_group_cannot_leave_the_brokers_range(
    name: str, value: str, words: str, configured: Broker, unique: Unique
) -> None:
    admin = AdminClient({"bootstrap.servers": configured.bootstrap_servers})
    with pytest.raises(KafkaException, match=rf"share\.{name}\.ms must be {words}\.ms"):
        change(admin, ResourceType.GROUP, unique("workers"), f"share.{name}.ms", value)


def test_a_record_is_delivered_as_often_as_the_broker_allows(configured: Broker, unique: Unique) -> None:
    servers, topic, group = configured.bootstrap_servers, unique("orders"), unique("workers")
    configure(servers, group, share_auto_offset_reset="earliest")
    publish(servers, topic, ["poison"])
    counts = []
    with worker(servers, group, topic) as consumer:
        for _ in range(2):
            [message] = take(consumer, bool)
            counts.append(message.delivery_count())
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
            consumer.commit_sync(PATIENCE_SECONDS)
        publish(servers, topic, ["fine"])
        [message] = take(consumer, bool)
    assert counts == [1, 2]
    assert message.value() == b"fine", "the poison was delivered twice, and is dead"


# --- the rack


def test_a_broker_shows_its_rack(trio: Trio) -> None:
    shown = [("broker.rack", "rack-2", STATIC)]
    assert described(trio, BROKER, "2")["broker.rack"] == ("STRING", "rack-2", STATIC, True, shown)
