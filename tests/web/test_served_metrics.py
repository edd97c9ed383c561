"""The HTTP port of a real broker."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from penstock import Broker


def samples(broker: Broker) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(broker.http_url + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_client_requests_change_the_metrics(broker: Broker, unique: Callable[[str], str]) -> None:
    topic, group = unique("seen"), unique("watchers")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for _ in range(10):
        producer.produce(topic, b"x" * 100)
    assert producer.flush(60) == 0
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    messages = consumer.consume(4, 20)
    assert len(messages) == 4
    consumer.commit(message=messages[-1], asynchronous=False)

    found = samples(broker)
    where = {"topic": topic, "partition": "0"}
    assert found[labelled("penstock_log_end_offset", **where)] == 10
    assert found[labelled("penstock_log_start_offset", **where)] == 0
    assert found[labelled("penstock_log_size_bytes", **where)] >= 1000
    assert found[labelled("penstock_group_lag", group=group, **where)] == 6
    assert found[labelled("penstock_group_members", group=group)] == 1
    assert found[labelled("penstock_requests_total", api="produce")] >= 1
    assert found[labelled("penstock_request_seconds_count", api="produce")] >= 1
    assert found[labelled("penstock_received_bytes_total")] > 1000
    assert found[labelled("penstock_connections")] >= 1
    assert found[labelled("penstock_ready")] == 1
    consumer.close()


def test_health_and_readiness_answer(broker: Broker) -> None:
    with urllib.request.urlopen(broker.http_url + "/health", timeout=60) as answer:
        assert json.load(answer) == {"status": "alive"}
    with urllib.request.urlopen(broker.http_url + "/ready", timeout=60) as answer:
        facts = json.load(answer)
    assert facts["ready"] is True
    assert facts["offline_partitions"] == 0
    assert facts["cluster_id"]


def test_two_brokers_in_one_process_count_separately(unique: Callable[[str], str]) -> None:
    with Broker() as first, Broker() as second:
        producer = Producer({"bootstrap.servers": first.bootstrap_servers, "enable.idempotence": True})
        producer.produce(unique("mine"), b"x")
        assert producer.flush(60) == 0
        assert samples(first)[labelled("penstock_requests_total", api="produce")] == 1
        assert labelled("penstock_requests_total", api="produce") not in samples(second)


def test_a_closed_broker_has_closed_its_port() -> None:
    with Broker() as broker:
        url = broker.http_url
        with urllib.request.urlopen(url + "/health", timeout=60) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url + "/health", timeout=2)
