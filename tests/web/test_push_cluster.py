"""Subscriptions of a cluster: any node redirects to the coordinator, and a failover costs no message and no ack."""

import asyncio
import json
from collections.abc import Callable, Iterator

import msgspec
import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed

from penstock.cluster import OFFSETS_TOPIC, offsets_partition
from penstock.config import Address
from tests.kafka.trio import Trio
from tests.web.pushing import Subscriber, create, produce, push_url, subscriber, values

Unique = Callable[[str], str]


class WebTrio(Trio):
    """Three nodes with HTTP ports."""

    async def _start(self, node_id: int) -> None:
        config = self._configs[node_id]
        self._configs[node_id] = msgspec.structs.replace(config, http=Address("127.0.0.1", 0))
        await super()._start(node_id)

    def http_url(self, node_id: int) -> str:
        return f"http://{self._services[node_id].http_address}"

    def coordinator_of(self, name: str) -> int:
        """The node that coordinates a subscription."""
        return self.leader(OFFSETS_TOPIC, self.index(name))

    def index(self, name: str) -> int:
        return offsets_partition(name, 3)


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    with WebTrio() as running:
        create(running.bootstrap_servers, "warm-up")
        with subscriber(running.http_url(1)) as one:  # creates the topic of committed offsets
            one.subscribe("warm-up", "warm-up")
        yield running


@pytest.fixture
def topic(trio: WebTrio, unique: Unique) -> str:
    name = unique("push")
    create(trio.bootstrap_servers, name)
    return name


def other(trio: WebTrio, *not_these: int) -> int:
    return next(node_id for node_id in trio.running if node_id not in not_these)


def kinds_until_closed(one: Subscriber) -> list[str]:
    kinds = []
    try:
        while True:
            kinds.append(one.hear()["type"])
    except ConnectionClosed:
        return kinds


def test_every_node_redirects_subscribers_to_their_coordinator(
    trio: WebTrio, topic: str, unique: Unique
) -> None:
    name = unique("push")
    coordinator = trio.coordinator_of(name)
    for node_id in trio.running:
        with subscriber(trio.http_url(node_id)) as one:
            said = one.subscribe(name, topic, take_over=True)
            if node_id == coordinator:
                assert said["type"] == "subscribed"
            else:
                assert said["type"] == "elsewhere"
                assert said["node_id"] == coordinator
                assert said["url"] == push_url(trio.http_url(coordinator)) + f"?subscription={name}"
                assert one.closed() == (4421, "elsewhere")


def test_a_client_that_names_its_subscription_in_the_url_is_redirected(
    trio: WebTrio, topic: str, unique: Unique
) -> None:
    name = unique("redirected")
    away = other(trio, trio.coordinator_of(name))

    async def follow() -> str:
        async with connect_async(f"{push_url(trio.http_url(away))}?subscription={name}") as socket:
            frame = {"type": "subscribe", "subscription": name, "topics": [topic]}
            await socket.send(json.dumps(frame))
            return str(json.loads(await socket.recv())["type"])

    assert asyncio.run(follow()) == "subscribed"


def test_messages_come_from_whichever_node_leads_the_partition(trio: WebTrio, unique: Unique) -> None:
    name, topic = unique("remote"), unique("spread")
    create(trio.bootstrap_servers, topic, 3)
    for index, node_id in enumerate(trio.running):
        trio.hand_over(topic, node_id, index)
        produce(trio.bootstrap_servers, topic, range(100), partition=index)
    with subscriber(trio.http_url(trio.coordinator_of(name))) as one:
        one.subscribe(name, topic, read_old=True, credit=1000)
        got = one.take(300)
        for index in range(3):
            produce(trio.bootstrap_servers, topic, ["tail"], partition=index)
        assert values(one.take(3)) == ["tail"] * 3
    for index in range(3):
        assert values(m for m in got if m["partition"] == index) == list(range(100))


def test_reading_continues_after_a_leader_change(trio: WebTrio, topic: str, unique: Unique) -> None:
    name = unique("reader")
    coordinator = trio.coordinator_of(name)
    with subscriber(trio.http_url(coordinator)) as one:
        one.subscribe(name, topic)
        for number, node_id in enumerate([coordinator, other(trio, coordinator), coordinator]):
            trio.hand_over(topic, node_id)
            produce(trio.bootstrap_servers, topic, [number])
            assert values(one.take(1)) == [number]


def test_when_the_coordinator_moves_the_subscriber_is_told_and_resumes_at_the_next(
    trio: WebTrio, topic: str, unique: Unique
) -> None:
    name = unique("moves")
    coordinator = trio.coordinator_of(name)
    produce(trio.bootstrap_servers, topic, range(10))
    with subscriber(trio.http_url(coordinator)) as one:
        one.subscribe(name, topic, read_old=True)
        one.ack_durably(one.take(10)[4])
        trio.hand_over(OFFSETS_TOPIC, other(trio, coordinator), trio.index(name))
        assert one.hear_of("error")["code"] == "unavailable"
        assert one.closed() == (1013, "unavailable")
    with subscriber(trio.http_url(trio.coordinator_of(name))) as one:
        assert one.subscribe(name, topic)["resumed"] is True
        assert values(one.take(5)) == [5, 6, 7, 8, 9]


def test_when_the_coordinator_is_cut_off_the_subscriber_resumes_at_the_next_and_no_durable_ack_is_lost(
    trio: WebTrio, topic: str, unique: Unique
) -> None:
    name = unique("failover")
    coordinator = trio.coordinator_of(name)
    trio.hand_over(topic, other(trio, coordinator))
    produce(trio.bootstrap_servers, topic, range(10))
    with subscriber(trio.http_url(coordinator)) as one:
        one.subscribe(name, topic, read_old=True)
        got = one.take(10)
        one.ack_durably(got[2])
        with trio.cut_off(coordinator):
            one.ack(got[7])  # to a node that can no longer store it
            rest = tuple(node_id for node_id in trio.running if node_id != coordinator)
            successor = trio.leader(OFFSETS_TOPIC, trio.index(name), among=rest)
            with subscriber(trio.http_url(successor)) as next_one:
                assert next_one.subscribe(name, topic)["resumed"] is True
                assert values(next_one.take(7)) == [3, 4, 5, 6, 7, 8, 9]
            assert "acked" not in kinds_until_closed(one)
    assert trio.coordinator_of(name) in trio.running
