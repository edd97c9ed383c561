"""A clique on a carrier that gives each message to any worker: the workers forward it to the owner of its key.

    publisher --> carrier --queue group--> any worker --forwards--> owner --> handler
                     <-- ack --                       <-- done --

Every stream is a subject of the carrier, and the clique's name is the queue group: so a message reaches each clique
once."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.client.errors import ClientError
from penstock.clique.chains import CHAIN_HEADER, chain_of_request
from penstock.clique.codecs import carries_key
from penstock.clique.coordination import CellCoordinator, Coordinator
from penstock.clique.dead_letters import DeadMessage
from penstock.clique.errors import CliqueError, Closed, OverLimit
from penstock.clique.forwarding import Forwarder
from penstock.clique.gossip_coordinator import GossipCoordinator
from penstock.clique.handlers import HandlerTable
from penstock.clique.handovers import Handovers
from penstock.clique.inbox import Inbox
from penstock.clique.intake import Intake
from penstock.clique.items import Item, PeerSource, Source
from penstock.clique.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX, check_size
from penstock.clique.membership import Membership
from penstock.clique.message import Message
from penstock.clique.ordering import OrderMark
from penstock.clique.outcomes import Outcomes
from penstock.clique.peers import PeerLinks
from penstock.clique.pubsub import Capabilities, Delivery, PubSub, Subscription
from penstock.clique.replies import PendingRequests, error_of, request_timed_out
from penstock.clique.runner import HandlerRunner
from penstock.clique.tasks import end_tasks
from penstock.clique.transport import Codecs
from penstock.clique.wire import (
    CALL_HEADER,
    DEADLINE_HEADER,
    ERROR_HEADER,
    FORWARD_BYTES_MAX,
    ORDER_HEADER,
    Busy,
    Done,
    Forward,
    Frame,
    GaveBack,
    HandedOver,
    Handover,
    reply_subject,
)
from penstock.clique.work import Failed
from penstock.ring.slots import slot_of

log = logging.getLogger("penstock.clique")

TICK_SECONDS: Final = 0.25


class ForwardingTransport:
    """On any PubSub."""

    def __init__(
        self,
        clique: str,
        worker: str,
        pubsub: PubSub,
        handlers: HandlerTable,
        codecs: Codecs,
        *,
        keeps_dead_letters: bool,
    ) -> None:
        """`keeps_dead_letters`: whether dead letters are published, or only logged."""
        self._clique = clique
        self._pubsub = pubsub
        self._handlers = handlers
        self._codecs = codecs
        self.address = secrets.token_hex(16)
        """Of this process: workers send to it, and responses come to it."""
        self._reply_subject = reply_subject(self.address)
        self._publisher = secrets.token_hex(8)
        self._numbers: dict[tuple[str, int], int] = {}
        """How many messages were published, by stream and slot (ordering.py)."""
        self._identities = itertools.count(1)
        self._incarnations = itertools.count(1)
        self._requests = PendingRequests()
        self._outcomes = Outcomes(
            pubsub,
            codecs,
            self._requests,
            self._reply_subject,
            self._start_task,
            clique=clique,
            worker=worker,
            keeps_dead_letters=keeps_dead_letters,
        )
        self._intake = Intake()
        self._links = PeerLinks(pubsub, clique, self.address, self._received_frame, self._too_large)
        self._inbox: Inbox | None = None
        self._forwarder: Forwarder | None = None
        self._handovers: Handovers | None = None
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = False

    # --- the carrier

    @property
    def capabilities(self) -> Capabilities:
        return self._pubsub.capabilities

    @property
    def in_flight(self) -> int:
        return len(self._intake) + (0 if self._inbox is None else len(self._inbox))

    async def open(self) -> None:
        await self._pubsub.connect()
        self._is_open = True
        await self._pubsub.subscribe(self._reply_subject, self._received_reply)

    def new_member_id(self) -> str:
        """Begins with the address (wire.py)."""
        return f"{self.address}-{next(self._incarnations)}"

    async def open_coordinator(self) -> Coordinator:
        pubsub = self._pubsub.another()
        await pubsub.connect()
        if not self.capabilities.compare_and_set:
            return GossipCoordinator(pubsub, self._clique)
        coordinator = CellCoordinator(pubsub, self._clique)
        await coordinator.open()
        return coordinator

    async def attach(
        self, membership: Membership, runner: HandlerRunner, on_failure: Callable[[Exception], None]
    ) -> None:
        inbox = self._inbox = Inbox(runner, self._outcomes.conclude, lambda item: forwarder.reroute(item))
        forwarder = self._forwarder = Forwarder(membership, inbox, self._links, self.address)
        self._handovers = Handovers(membership, inbox, self._links, self.address)
        await self._links.open()
        self._start_task(self._tick(forwarder, inbox))

    async def begin_intake(self) -> None:
        for stream in self._handlers.streams:
            self._subscriptions.append(await self._pubsub.subscribe(stream, self._received, self._clique))

    async def _tick(self, forwarder: Forwarder, inbox: Inbox) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            forwarder.tick()
            inbox.tick()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("the clique is not open: use it inside `async with clique`")

    # --- publish and request

    async def publish(self, message: Message, timeout_s: float) -> None:
        data = self._encode(message)
        headers = {}
        if message.key is not None:
            counter = message.stream, slot_of(message.key)
            number = self._numbers[counter] = self._numbers.get(counter, 0) + 1
            headers[ORDER_HEADER] = str(OrderMark(self._publisher, number))
        async with asyncio.timeout(timeout_s):
            await self._pubsub.publish(message.stream, data, headers)

    async def request(self, message: Message, timeout_s: float) -> bytes:
        data = self._encode(message)
        request_id, response = self._requests.begin()
        headers = {
            CALL_HEADER: request_id,
            DEADLINE_HEADER: str(round((time.time() + timeout_s) * 1000)),
        }
        try:
            if (chain := chain_of_request()) is not None:
                headers[CHAIN_HEADER] = str(chain)
            async with asyncio.timeout(timeout_s):
                await self._ask(message.stream, data, headers, request_id)
                answer = self._codecs.of(message.stream).decode(message.stream, await response)
                return answer.value or b""
        except TimeoutError:
            raise request_timed_out(message.stream, timeout_s) from None
        finally:
            self._requests.end(request_id)

    async def _ask(self, stream: str, data: bytes, headers: dict[str, str], request_id: str) -> None:
        """A worker of the clique sends the request to the owner, or runs it if it is the owner. Any other process lets
        the carrier choose a worker, which forwards it."""
        if self._forwarder is None or self._handlers.handler_of(stream, is_request=True) is None:
            await self._pubsub.publish(stream, data, headers, self._reply_subject)
            return
        item = self._item(stream, data, headers, self._reply_subject, request_id, None)
        self._forwarder.route(item)

    def _encode(self, message: Message) -> bytes:
        self._check_open()
        codec = self._codecs.of(message.stream)
        if message.key is not None and not carries_key(codec):
            raise CliqueError(
                f"{type(codec).__name__} carries no key on {self._pubsub!r}: publish without key=, or use another codec"
            )
        check_size("the key", len(message.key or b""), KEY_BYTES_MAX, "limits.KEY_BYTES_MAX")
        data = codec.encode(message)
        check_size("the message", len(data), MESSAGE_BYTES_MAX, "limits.MESSAGE_BYTES_MAX")
        if (limit := self._pubsub.max_message_bytes) is not None:
            check_size("the message", len(data), limit - FORWARD_BYTES_MAX, f"of {self._pubsub!r}")
        return data

    async def _received_reply(self, delivery: Delivery) -> None:
        error = delivery.headers.get(ERROR_HEADER)
        self._requests.respond(delivery.headers.get(CALL_HEADER, ""), delivery.data, error)

    # --- messages from the carrier and from other workers

    async def _received(self, delivery: Delivery) -> None:
        source = await self._intake.take(delivery)
        self._accept(delivery.subject, delivery.data, delivery.headers, delivery.reply, None, source)

    def _received_frame(self, frame: Frame) -> None:
        assert self._forwarder is not None
        assert self._handovers is not None
        match frame:
            case Forward():
                self._received_forward(frame)
            case Done(forward_id=number):
                self._forwarder.done(number)
            case GaveBack(forward_id=number, attempts=attempts):
                self._forwarder.gave_back(number, attempts)
            case Busy(forward_id=number):
                self._forwarder.gave_back(number, 0)
            case Handover():
                self._handovers.received(frame)
            case HandedOver(handover_id=number):
                self._handovers.answered(number)

    def _received_forward(self, frame: Forward) -> None:
        assert self._forwarder is not None
        assert self._inbox is not None
        if not (self._inbox.has_room and self._forwarder.has_room) and not self._inbox.knows(frame.identity):
            self._links.send(frame.sender, Busy(frame.forward_id))
            return
        source = PeerSource(self._links, frame.sender, frame.forward_id)
        self._accept(
            frame.stream,
            frame.data,
            frame.headers,
            frame.reply,
            frame.identity,
            source,
            hops=frame.hops,
            attempts=frame.attempts,
        )

    def _too_large(self, frame: Frame) -> None:
        """A publisher that is no clique has published a message that the carrier takes, but not if it is forwarded.
        Where sequences are (Handover) the next owner finds out itself."""
        if not isinstance(frame, Forward) or self._forwarder is None:
            return
        if (item := self._forwarder.too_large(frame.forward_id)) is not None:
            problem = OverLimit(
                f"the message of {item.size} bytes cannot be forwarded to its owner on {self._pubsub!r}"
            )
            self._outcomes.conclude(item, Failed(problem, item.attempts))

    def _accept(
        self,
        stream: str,
        data: bytes,
        headers: Mapping[str, str],
        reply: str | None,
        identity: str | None,
        source: Source,
        **way: Any,
    ) -> None:
        """A message that cannot be read is a dead letter, whole; the sender of a request is told."""
        try:
            item = self._item(stream, data, headers, reply, identity, source, **way)
        except Exception as problem:  # noqa: BLE001 - of the application's codec and key function
            if reply is not None:
                self._outcomes.respond(reply, headers, b"", error_of(problem))
                source.done()
            else:
                self._outcomes.write_dead_letter(
                    DeadMessage(stream, data, None, headers, 0, problem), source.done
                )
        else:
            assert self._forwarder is not None
            self._forwarder.route(item)

    def _item(
        self,
        stream: str,
        data: bytes,
        headers: Mapping[str, str],
        reply: str | None,
        identity: str | None,
        source: Source | None,
        **way: Any,
    ) -> Item:
        """`way`: how it came here, if it was forwarded. Raises anything that the codec or the key function raises."""
        handler = self._handlers.handler_of(stream, is_request=reply is not None)
        if handler is None:
            raise CliqueError(f"the clique {self._clique} has no responder for {stream}")
        message = self._codecs.of(stream).decode(stream, data)
        key = handler.key_of(message)
        check_size("the key", len(key or b""), KEY_BYTES_MAX, "limits.KEY_BYTES_MAX")
        mark = None
        if message.key is not None and reply is None:
            published_slot = slot_of(message.key)
            mark = OrderMark.parse(headers.get(ORDER_HEADER))
            if mark is not None:
                identity = f"{stream}/{published_slot}/{mark}"
        if identity is None:
            identity = f"{self.address}/{next(self._identities)}"
        slot = slot_of(identity.encode() if key is None else key)
        return Item(
            stream=stream,
            data=data,
            headers=headers,
            reply=reply,
            message=message,
            handler=handler,
            key=key,
            slot=slot,
            identity=identity,
            # The publisher has counted by the slot of the message's own key.
            mark=mark if mark is not None and slot == published_slot else None,
            source=source,
            **way,
        )

    # --- slots

    def table_changed(self) -> None:
        if self._forwarder is not None:
            self._forwarder.table_changed()

    async def hand_over(self, slots: Collection[int]) -> None:
        if self._inbox is not None and self._handovers is not None:
            await self._handovers.send(self._inbox.give_up(slots))

    def lose(self, slots: Collection[int]) -> None:
        if self._inbox is not None:
            self._inbox.give_up(slots)

    # --- the end

    async def end_intake(self) -> None:
        while self._subscriptions:
            await self._subscriptions.pop().unsubscribe()

    async def drain(self, timeout_s: float) -> None:
        if self._forwarder is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._forwarder.has_undone(acks=self.capabilities.acks):
                    await self._intake.wait_for_change(TICK_SECONDS)

    async def close(self) -> None:
        """Messages that are left go back to the carrier; on one without acknowledgements they are lost."""
        if not self._is_open:
            return
        self._is_open = False
        left = self._intake.abandon()
        if left and not self.capabilities.acks:
            log.error("%d messages were not handled before the worker ended, and are lost", left)
        self._requests.fail_all(Closed("the clique was closed"))
        await self._links.flush()
        await end_tasks(self._tasks)
        with suppress(ClientError):
            await self._pubsub.close()
