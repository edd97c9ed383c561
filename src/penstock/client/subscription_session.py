"""The session of a subscriber: one connection, to the node that owns the subscription; messages in log order; acks.

An ack covers its message and all that came before it from the same partition. The session collects acks until the
driver asks for effects, and sends only the last of each partition.

After a reconnect the broker starts behind the last durable ack. A message that was taken from an earlier connection,
however many connections ago, may be acked later (redelivery.py keeps track): the session then sends that ack over the
current connection, or the next one, and does not hand out the message's second copy. So slow handlers cause no
duplicates while the process lives. If the message is still not acked when its copy comes, the session hands out the
copy: it cannot tell a slow handler from a message that was dropped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from urllib.parse import quote

from penstock.client.arguments import READ_UNCOMMITTED, IsolationLevel
from penstock.client.errors import Closed, Garbled, LeaseLost
from penstock.client.frames import (
    PUSH_PATH,
    Acked,
    Batches,
    Elsewhere,
    ErrorFrame,
    Frame,
    Gone,
    Inactive,
    Position,
    Subscribed,
    Unsubscribed,
    compose,
)
from penstock.client.received_record import records_within
from penstock.client.redelivery import DeliveredMessage, RedeliveryTracker
from penstock.client.session import (
    REDIRECTS_MAX,
    ConnectionLoss,
    Item,
    Promise,
    Session,
    SessionConnection,
    websocket_url,
)
from penstock.errors import BatchError
from penstock.types import TopicPartition


class SubscriptionSession(Session[Item]):
    """A subscriber."""

    path = PUSH_PATH

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        *,
        make: Callable[..., Item],
        random: Random,
        credit: int,
        read_old: bool,
        take_over: bool,
        ack_timeout_ms: int,
        ttl_ms: int,
        isolation: IsolationLevel = READ_UNCOMMITTED,
        reconnect_timeout_s: float | None = None,
        last_problem: str = "",
    ) -> None:
        super().__init__(random=random, reconnect_timeout_s=reconnect_timeout_s, last_problem=last_problem)
        self._name = name
        self._make = make
        self._options: dict[str, object] = {
            "topics": list(topics),
            "read_old": read_old,
            "credit": credit,
            "ack_timeout_ms": ack_timeout_ms,
            "ttl_ms": ttl_ms,
        }
        if isolation != READ_UNCOMMITTED:
            self._options["isolation"] = isolation  # a broker of an earlier version does not know the field
        self._take_over = take_over
        self._redirects = 0
        self._was_served = False
        self._current: SessionConnection | None = None
        """The connection over which the broker serves the subscription now."""
        self._acks: dict[TopicPartition, DeliveredMessage] = {}
        """Acks that are to be sent: the latest of each partition."""
        self._waiting: dict[TopicPartition, list[tuple[DeliveredMessage, Promise | None]]] = {}
        """Acked by the caller, and not durable yet."""
        self._unacked: dict[TopicPartition, deque[DeliveredMessage]] = {}
        """Received over the current connection and not acked, in the order of their arrival."""
        self._redelivery = RedeliveryTracker()
        self._unsubscribing: Promise | None = None
        self.resumed = False
        self.times_inactive = 0

    # --- messages in hand

    def ack(self, item: Item, promise: Promise | None) -> None:
        """Is sent with the next effects. The promise is resolved when the ack is durable, or has failed."""
        tp = item.topic_partition
        if self.ended is not None:
            closed = Closed(f"{item!r}: the subscription was closed; the message will come again")
            self._resolve(promise, closed)
        elif not self.holds(item):
            self._redelivery.ack(item)
            lost = LeaseLost(f"{item!r}: its connection ended before the ack: it may come again")
            self._resolve(promise, lost)
            self._ack_redelivered(tp)
        else:
            self._ack_up_to(tp, DeliveredMessage.of(item))
            self._waiting[tp].append((DeliveredMessage.of(item), promise))
            self._ack_redelivered(tp)

    def _ack_up_to(self, tp: TopicPartition, delivery: DeliveredMessage) -> None:
        """Acks this message and all that came before it over the current connection."""
        latest = self._acks.get(tp)
        if latest is None or latest.order < delivery.order:
            self._acks[tp] = delivery
        unacked = self._unacked.get(tp, deque())
        waiting = self._waiting.setdefault(tp, [])
        while unacked and unacked[0].order <= delivery.order:
            waiting.append((unacked.popleft(), None))

    def _ack_redelivered(self, tp: TopicPartition) -> None:
        """Acks messages over the current connection that were acked before they came again, and does not hand them out.

        Only up to the first message that was not acked (a deferred message can be that one): an ack would cover it.
        """
        last = None
        for delivery in self._unacked.get(tp, ()):
            if not self._redelivery.was_acked(tp, delivery):
                break
            last = delivery
        if last is None or self._current is None:
            return
        self._ack_up_to(tp, last)
        self.ready = deque(
            item for item in self.ready if item.topic_partition != tp or item.order > last.order
        )

    def unsubscribe(self, promise: Promise) -> None:
        """Deletes the subscription, with its committed offsets."""
        if self._current is None:
            self._resolve(promise, LeaseLost("not connected at the moment: unsubscribe again"))
            return
        self._unsubscribing = promise
        self._send(self._current, compose("unsubscribe"))

    def holds(self, item: Item) -> bool:
        return self._current is not None and item.connection_id == self._current.connection_id

    def drain(self) -> None:
        self.ready.clear()

    @property
    def has_effects(self) -> bool:
        return bool(self._acks) or super().has_effects

    @property
    def is_served(self) -> bool:
        return self._current is not None

    @property
    def is_settled(self) -> bool:
        """Acks that were lost with a connection are not answered either: they are sent again when the copies of their
        messages come."""
        return not (self._acks or any(self._waiting.values()) or self._redelivery.has_acked)

    def take_lost_acks(self) -> bool:
        has_forgotten = self._redelivery.take_lost_acks()
        return super().take_lost_acks() or has_forgotten

    # --- the connection

    def _query(self) -> str:
        return f"?subscription={quote(self._name, safe='')}"

    def _first_frame(self, connection: SessionConnection) -> str:
        # The broker may not have noticed yet that our last connection is gone. It was ours, so we take it over.
        take_over = self._take_over or self._was_served
        name = self._name
        return compose("subscribe", subscription=name, encoding="batch", take_over=take_over, **self._options)

    def _handle(self, connection: SessionConnection, frame: Frame, now: float) -> None:
        match frame:
            case Batches():
                self._accept_messages(connection, frame)
            case Acked():
                for position in frame.positions:
                    self._became_durable(position)
            case Gone():
                self._drop_topic(frame.topic)
            case Subscribed():
                self._reset_backoff(connection)
                self._redirects, self._current, self.resumed = 0, connection, frame.resumed
                self._was_served = True
                positions = {TopicPartition(one.topic, one.partition): one for one in frame.positions}
                self._redelivery.resume(positions, is_same=frame.resumed)
            case Elsewhere():
                self._node_urls.appendleft(websocket_url(frame.url))
            case Inactive():
                self.times_inactive += 1
                connection.error = ErrorFrame("inactive", frame.message)
            case Unsubscribed():
                self._resolve(self._unsubscribing, None)
                self._unsubscribing = None
                self._end(Closed("the subscription was ended"))
            case _:
                pass  # a frame for queues

    def _drop_topic(self, topic: str) -> None:
        """Acks of a deleted topic are never durable; its messages do not come again either."""
        self._redelivery.drop_topic(topic)
        for tp in [tp for tp in self._waiting if tp.topic == topic]:
            for delivery, promise in self._waiting.pop(tp):
                self._resolve(promise, LeaseLost(f"{tp} at {delivery.offset}: the topic was deleted"))

    def _plan_reconnect(self, connection: SessionConnection, loss: ConnectionLoss, now: float) -> None:
        if loss.redirect is not None:
            self._node_urls.appendleft(websocket_url(loss.redirect))
        was_redirected = loss.redirect is not None or loss.close_code == 4421
        self._redirects += was_redirected
        if not was_redirected or self._redirects > REDIRECTS_MAX:
            self._back_off(connection.node_url, now)
            self._redirects = 0

    def _drop(self, connection: SessionConnection, loss: ConnectionLoss | None) -> None:
        if connection is self._current:
            self._current = None
            self._keep_taken(connection)
        reason = "the connection ended" if loss is not None else "it was closed"
        for tp, waiting in self._waiting.items():
            self._redelivery.remember(tp, [delivery for delivery, _promise in waiting])
            for delivery, promise in waiting:
                lost = LeaseLost(f"{tp} at {delivery.offset}: {reason} before its ack was durable")
                self._resolve(promise, lost)
        self._waiting.clear()
        self._acks.clear()
        if self._unsubscribing is not None:
            self._resolve(self._unsubscribing, LeaseLost(f"{reason} before the subscription was forgotten"))
            self._unsubscribing = None

    def _keep_taken(self, connection: SessionConnection) -> None:
        """Callers may still ack the messages that they have taken. The others are never handed out, so never acked."""
        mine = (item.order for item in self.ready if item.connection_id == connection.connection_id)
        first_ready = next(mine, None)
        for tp, unacked in self._unacked.items():
            taken = [one for one in unacked if first_ready is None or one.order < first_ready]
            self._redelivery.keep(connection.connection_id, tp, taken)
        self._unacked.clear()

    # --- received messages

    def _accept_messages(self, connection: SessionConnection, batches: Batches) -> None:
        tp = TopicPartition(batches.head.topic, batches.head.partition)
        unacked = self._unacked.setdefault(tp, deque())
        connection_id = connection.connection_id
        try:
            for _which, record in records_within(batches.data, batches.head.offsets):
                item = self._make(tp, record, connection_id=connection_id, order=self._next_order())
                unacked.append(DeliveredMessage.of(item))
                self.ready.append(item)
        except BatchError as problem:
            at = f"{tp} from {batches.head.offsets[0][0]}"
            self._end(
                Garbled(f"{at}: records that cannot be read: {problem}: move the group's offset behind them")
            )
            return
        self._ack_redelivered(tp)

    def _became_durable(self, position: Position) -> None:
        tp = TopicPartition(position.topic, position.partition)
        self._redelivery.became_durable(tp, position)
        later = []
        for delivery, promise in self._waiting.pop(tp, []):
            if position.covers(delivery.offset):
                self._resolve(promise, None)
            else:
                later.append((delivery, promise))
        if later:
            self._waiting[tp] = later

    def _send_pending(self, now: float) -> None:
        if self._current is None:
            return
        acks, self._acks = self._acks, {}
        for tp, last in acks.items():
            self._send(
                self._current, compose("ack", topic=tp.topic, partition=tp.partition, offset=last.offset)
            )
