"""GET records with `isolation`: committed, aborted and open transactions."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from penstock import Broker
from tests.transactional import ALL, COMMITTED, END, PATIENCE_SECONDS, TransactionalTopic

Unique = Callable[[str], str]


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> str:
    """`fill`, and an open transaction at the end."""
    made = TransactionalTopic(broker, unique("isolated"))
    made.fill()
    made.send(1, "open")
    return made.name


def read(http: httpx.Client, topic: str, **query: Any) -> Any:
    answer = http.get(f"/v1/topics/{topic}/partitions/0/records", params={"encoding": "text", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def values(answer: Any) -> dict[int, str]:
    return {record["offset"]: record["value"] for record in answer["records"]}


def test_by_default_a_reader_sees_aborted_and_open_transactions(http: httpx.Client, topic: str) -> None:
    answer = read(http, topic)
    assert values(answer) == {**ALL, END: "open"}
    assert (answer["next_offset"], answer["high_watermark"]) == (END + 1, END + 1)
    assert "last_stable_offset" not in answer
    assert read(http, topic, isolation="read_uncommitted") == answer


def test_read_committed_leaves_out_aborted_records_and_stops_at_an_open_transaction(
    http: httpx.Client, topic: str
) -> None:
    answer = read(http, topic, isolation="read_committed")
    assert values(answer) == COMMITTED
    assert (answer["next_offset"], answer["last_stable_offset"]) == (END, END)
    assert answer["high_watermark"] == END + 1


@pytest.mark.parametrize("limit", [{"max_records": 1}, {"max_bytes": 1}])
def test_small_reads_pass_over_aborted_records(http: httpx.Client, topic: str, limit: dict[str, int]) -> None:
    found: dict[int, str] = {}
    offset = 0
    while offset < END:
        answer = read(http, topic, isolation="read_committed", offset=offset, **limit)
        assert answer["next_offset"] > offset, "a response without records moves on too"
        found |= values(answer)
        offset = answer["next_offset"]
    assert found == COMMITTED


def test_latest_is_the_last_stable_offset(http: httpx.Client, topic: str) -> None:
    assert read(http, topic, isolation="read_committed", offset="latest")["next_offset"] == END
    assert read(http, topic, offset="latest")["next_offset"] == END + 1


def test_another_level_is_refused_by_name(http: httpx.Client, topic: str) -> None:
    answer = http.get(f"/v1/topics/{topic}/partitions/0/records", params={"isolation": "serializable"})
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "isolation"


def test_a_waiting_read_gets_the_records_of_a_client_when_they_are_committed(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    topic = TransactionalTopic(broker, unique("isolated")).name
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": unique("id")})
    producer.init_transactions(PATIENCE_SECONDS)
    for value, is_committed in (("dropped", False), ("kept", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE_SECONDS)
        end = producer.commit_transaction if is_committed else producer.abort_transaction
        end(PATIENCE_SECONDS)
    found: list[str] = []
    offset = 0
    while not found:
        answer = read(http, topic, isolation="read_committed", offset=offset, wait_ms=30_000)
        offset = answer["next_offset"]
        found += values(answer).values()
    assert found == ["kept"]
