"""The carrier in memory: queue groups, acknowledgements and cells."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.clique import Closed, OverLimit, memory
from penstock.clique.memory import MemoryPubSub
from penstock.clique.pubsub import Delivery
from tests.clique.world import asynchronous


@pytest.fixture
def hub(unique: Callable[[str], str]) -> str:
    return unique("hub")


class Subscriber:
    def __init__(self) -> None:
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()

    async def __call__(self, delivery: Delivery) -> None:
        self.deliveries.put_nowait(delivery)

    async def get(self) -> Delivery:
        async with asyncio.timeout(60):
            return await self.deliveries.get()


@asynchronous
async def test_one_subscriber_of_a_group_gets_each_message_and_every_group_gets_it(hub: str) -> None:
    pubsub = MemoryPubSub(hub)
    ours, theirs, plain = [Subscriber(), Subscriber()], Subscriber(), Subscriber()
    for one in ours:
        await pubsub.subscribe("orders", one, "ours")
    await pubsub.subscribe("orders", theirs, "theirs")
    await pubsub.subscribe("orders", plain)
    for number in range(10):
        await pubsub.publish("orders", b"%d" % number, {"a": "b"}, reply="there")
    for one in (theirs, plain):
        got = [await one.get() for _ in range(10)]
        assert [delivery.data for delivery in got] == [b"%d" % number for number in range(10)]
        assert (got[0].subject, got[0].headers, got[0].reply) == ("orders", {"a": "b"}, "there")
    assert sorted(one.deliveries.qsize() for one in ours) == [5, 5]
    await pubsub.close()


@asynchronous
async def test_what_is_not_acknowledged_goes_to_another_subscriber_in_order(hub: str) -> None:
    leaving, staying = MemoryPubSub(hub), MemoryPubSub(hub)
    first, second = Subscriber(), Subscriber()
    await leaving.subscribe("orders", first, "group")
    for number in range(3):
        await leaving.publish("orders", b"%d" % number)
    deliveries = [await first.get() for _ in range(3)]
    deliveries[1].ack()
    deliveries[1].nack()  # too late
    await leaving.close()
    deliveries[0].ack()  # too late
    await staying.subscribe("orders", second, "group")
    assert [(await second.get()).data for _ in range(2)] == [b"0", b"2"]
    assert second.deliveries.empty()
    await staying.close()


@asynchronous
async def test_a_message_that_is_refused_comes_again_before_later_ones(hub: str) -> None:
    pubsub = MemoryPubSub(hub)
    subscriber = Subscriber()
    await pubsub.publish("orders", b"before the group: nobody wants it")
    subscription = await pubsub.subscribe("orders", subscriber, "group")
    await pubsub.publish("orders", b"0")
    await subscription.unsubscribe()
    await pubsub.publish("orders", b"1")
    await pubsub.subscribe("orders", subscriber, "group")
    delivery = await subscriber.get()
    assert delivery.data == b"0"
    delivery.nack()
    assert [(await subscriber.get()).data for _ in range(2)] == [b"1", b"0"]
    await pubsub.close()


@asynchronous
async def test_a_subscriber_that_unsubscribes_can_still_acknowledge_what_it_has(hub: str) -> None:
    pubsub = MemoryPubSub(hub)
    first, second = Subscriber(), Subscriber()
    subscription = await pubsub.subscribe("orders", first, "group")
    await pubsub.publish("orders", b"0")
    delivery = await first.get()
    await subscription.unsubscribe()
    delivery.ack()
    await pubsub.publish("orders", b"1")
    await pubsub.subscribe("orders", second, "group")
    assert (await second.get()).data == b"1"
    await pubsub.close()


@asynchronous
async def test_a_subscriber_has_a_bounded_number_of_unacknowledged_messages(hub: str, monkeypatch) -> None:
    monkeypatch.setattr(memory, "UNACKED_MAX", 2)
    pubsub = MemoryPubSub(hub)
    subscriber = Subscriber()
    await pubsub.subscribe("orders", subscriber, "group")
    for number in range(5):
        await pubsub.publish("orders", b"%d" % number)
    first = await subscriber.get()
    await subscriber.get()
    await asyncio.sleep(0.01)
    assert subscriber.deliveries.empty()
    first.ack()
    assert (await subscriber.get()).data == b"2"
    await pubsub.close()


@asynchronous
async def test_a_group_without_a_worker_holds_a_bounded_number_of_messages(hub: str, monkeypatch) -> None:
    monkeypatch.setattr(memory, "BACKLOG_MAX", 2)
    pubsub = MemoryPubSub(hub)
    await (await pubsub.subscribe("orders", Subscriber(), "group")).unsubscribe()
    await pubsub.publish("orders", b"0")
    await pubsub.publish("orders", b"1")
    with pytest.raises(OverLimit, match="BACKLOG_MAX"):
        await pubsub.publish("orders", b"2")
    monkeypatch.setattr(memory, "BACKLOG_MAX", 100)
    monkeypatch.setattr(memory, "BACKLOG_BYTES_MAX", 5)
    with pytest.raises(OverLimit, match="2 bytes"):
        await pubsub.publish("orders", b"2345")


@asynchronous
async def test_a_cell_changes_only_if_it_is_as_the_writer_has_seen_it(hub: str) -> None:
    store = MemoryPubSub(hub).store
    assert await store.get("cell") is None
    assert await store.put("cell", b"first", 0) == 1
    assert await store.put("cell", b"blind", 0) is None
    assert await store.put("cell", b"second", 1) == 2
    assert await store.get("cell") == (2, b"second")


@asynchronous
async def test_a_closed_connection_is_not_used(hub: str) -> None:
    pubsub = MemoryPubSub(hub)
    await pubsub.close()
    with pytest.raises(Closed):
        await pubsub.publish("orders", b"...")
    with pytest.raises(Closed):
        await pubsub.subscribe("orders", Subscriber())


@asynchronous
async def test_a_callback_that_fails_does_not_end_the_subscription(hub: str) -> None:
    pubsub = MemoryPubSub(hub)
    subscriber = Subscriber()

    async def fail_once(delivery: Delivery) -> None:
        if delivery.data == b"0":
            raise ValueError("a bug")
        await subscriber(delivery)

    await pubsub.subscribe("orders", fail_once)
    await pubsub.publish("orders", b"0")
    await pubsub.publish("orders", b"1")
    assert (await subscriber.get()).data == b"1"
    await pubsub.close()
