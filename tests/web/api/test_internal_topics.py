"""Internal topics belong to the broker: no interface creates a queue on them."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from penstock import Broker
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import metadata, share_fetch
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask
from tests.web.workers import working

Unique = Callable[[str], str]
INTERNAL = "__share_group_state"


@pytest.fixture(autouse=True)
def internal(http: httpx.Client, unique: Unique) -> None:
    """The internal topic exists since the first queue."""
    http.post("/v1/queues", json={"queue": unique("first")}).raise_for_status()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker) as connected:
        yield connected


def test_no_queue_is_created_on_an_internal_topic(http: httpx.Client, unique: Unique) -> None:
    queue = unique("work")
    answer = http.post("/v1/queues", json={"queue": queue, "topic": INTERNAL})
    facts = answer.json()["error"]
    assert (answer.status_code, facts["code"], facts["field"]) == (400, "invalid_field", "topic")
    assert http.get(f"/v1/queues/{queue}").status_code == 404


def test_no_job_is_received_from_an_internal_topic(http: httpx.Client, unique: Unique) -> None:
    queue = unique("work")
    answer = http.post(f"/v1/queues/{queue}/receive", json={"topics": [INTERNAL], "wait_ms": 20_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_topic_exception")
    assert http.get(f"/v1/queues/{queue}").status_code == 404


def test_a_worker_on_an_internal_topic_is_refused(broker: Broker, unique: Unique) -> None:
    with working(broker.http_url, unique("work"), INTERNAL) as worker:
        last, code = worker.ending()
    assert (last["code"], code) == ("invalid_topic", 4400)


def test_a_share_consumer_is_refused(client: RawClient, unique: Unique) -> None:
    asked = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=INTERNAL)])
    [topic] = ask(client, ApiKey.METADATA, 12, asked, metadata.MetadataResponse).topics
    place = share_fetch.FetchTopic(
        topic_id=topic.topic_id, partitions=[share_fetch.FetchPartition(partition_index=0)]
    )
    request = share_fetch.ShareFetchRequest(
        group_id=unique("work"), member_id=unique("member"), max_records=10, batch_size=10, topics=[place]
    )
    answer = ask(client, ApiKey.SHARE_FETCH, 1, request, share_fetch.ShareFetchResponse)
    [row] = answer.responses[0].partitions
    assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
