"""A subscriber that does not read holds almost nothing, and loses nothing when it goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from penstock.node.subscriptions.session import SubscriberSession
from penstock.node.subscriptions.stats import PushCounts
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.node.subscriptions.values import ControlFrame, SubscribeRequest
from penstock.queue.subscription import Position, SubscriberSettings
from tests.node.subscriptions.test_subscriptions import KEY, TOPIC_ID, ReaderHarness


class Sink:
    """A connection that takes so many frames."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[bytes | ControlFrame] = []
        self.is_stuck = asyncio.Event()
        self._reads = asyncio.Event()

    def read(self, frames: int) -> None:
        self.room += frames
        self._reads.set()

    async def send(self, what: bytes | ControlFrame) -> None:
        assert self.room > 0, "a frame was made for a connection that does not take it"
        self.room -= 1
        self.sent.append(what)

    async def has_room(self, seconds: float) -> bool:
        return self.room > 0

    async def wait_for_room(self) -> None:
        self.is_stuck.set()
        await self._reads.wait()


class Scene(ReaderHarness):
    """One subscriber that reads a partition from its start."""

    def __init__(self) -> None:
        super().__init__()
        settings = SubscriberSettings(credit=1_000)
        self.session = SubscriberSession(
            SubscribeRequest(name="s", topics=("t",), encoder=self.encoder, settings=settings),
            [Position(KEY, 0)],
            {"t": TOPIC_ID},
            terms={},
            reader=self.page_reader,
            store=cast(SubscriptionStore, None),
            now_ms=lambda: 1_000,
            counts=PushCounts(),
        )


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Scene())

    asyncio.run(run())


def test_a_frame_is_made_when_the_connection_takes_it() -> None:
    async def scenario(scene: Scene) -> None:
        scene.reader.append(b"a")
        sink = Sink(room=0)
        running = asyncio.ensure_future(scene.session.run(sink))
        await sink.is_stuck.wait()
        assert scene.encoder.frames_made == 0
        sink.read(1)
        await scene.until(lambda: sink.sent == [b"a"])
        running.cancel()

    play(scenario)


def test_a_subscriber_that_does_not_read_holds_no_pages_and_gets_all_messages_when_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.node.subscriptions.page_reader.CACHE_BYTES", 0)
    monkeypatch.setattr("penstock.node.subscriptions.pages.FRAME_BYTES", 1)

    async def scenario(scene: Scene) -> None:
        scene.reader.append(b"a", b"b", b"c")
        sink = Sink(room=1)
        running = asyncio.ensure_future(scene.session.run(sink))
        await sink.is_stuck.wait()
        assert len(sink.sent) == 1
        assert scene.session._pages == {}
        assert scene.session._page_bytes == 0
        scene.reader.append(b"d")
        await asyncio.sleep(0)
        assert scene.session._pages == {}
        sink.read(100)
        await scene.until(lambda: b"d" in b"".join(cast(list[bytes], sink.sent)))
        assert b"|".join(cast(list[bytes], sink.sent)) == b"a|b|c|d"
        running.cancel()

    play(scenario)


def test_a_page_that_arrives_for_a_subscriber_that_does_not_read_is_dropped_and_read_again() -> None:
    async def scenario(scene: Scene) -> None:
        sink = Sink(room=1)
        scene.session.tell({"type": "subscribed"})
        running = asyncio.ensure_future(scene.session.run(sink))
        await scene.until(lambda: sink.is_stuck.is_set() or scene.reader.waiting == 1)
        scene.session.tell({"type": "pong"})
        await sink.is_stuck.wait()
        scene.reader.append(b"a")
        await scene.until(lambda: scene.reader.waiting == 0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert scene.session._pages == {}
        sink.read(2)
        await scene.until(lambda: sink.sent == [{"type": "subscribed"}, {"type": "pong"}, b"a"])
        running.cancel()

    play(scenario)


def test_pings_of_a_subscriber_that_does_not_read_take_no_memory_and_are_all_answered_when_it_reads() -> None:
    async def scenario(scene: Scene) -> None:
        sink = Sink(room=0)
        running = asyncio.ensure_future(scene.session.run(sink))
        scene.session.pong()
        await sink.is_stuck.wait()
        for _ in range(9_999):
            scene.session.pong()
        assert len(scene.session._notices) == 0
        sink.read(10_000)
        await scene.until(lambda: sink.sent == [{"type": "pong"}] * 10_000)
        running.cancel()

    play(scenario)
