"""A subscriber: one link, to the node where its subscription is at home; messages in the log's order; acks.

An ack is for a message and for all that came before it of the same partition. Acks are gathered until the driver asks
for effects, and only the last of each partition is sent.

When a link is gone, the next one begins behind what was acked durably. What was taken from the old one may be acked
meanwhile: such acks are remembered, and the same messages, when they come again, are acked at once and not handed out a
second time. This is why slow work costs no duplicates in a process that lives on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final
from urllib.parse import quote

from penstock.client.errors import Closed, Garbled, LeaseLost
from penstock.client.frames import (
    PUSH_PATH,
    Acked,
    Batches,
    Elsewhere,
    Frame,
    Inactive,
    Position,
    Subscribed,
    Trouble,
    Unsubscribed,
    compose,
)
from penstock.client.received import Place, Received, records_within
from penstock.client.session import HOPS_MAX, Item, Link, Loss, Resolve, Session, Token, base_of
from penstock.errors import BatchError

REMEMBERED_MAX: Final = 100_000
"""Acks of messages whose link was gone, of all partitions: no more than the largest credit."""

MakeMessage = Callable[..., Item]


class FeedSession(Session[Item]):
    """A subscription, followed."""

    path = PUSH_PATH

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        *,
        make: "MakeMessage[Item]",
        random: Random,
        credit: int,
        read_old: bool,
        take_over: bool,
        ack_timeout_ms: int,
        ttl_ms: int,
        patience_s: float | None = None,
    ) -> None:
        super().__init__(random=random, patience_s=patience_s)
        self._name = name
        self._make = make
        self._wish: dict[str, object] = {
            "topics": list(topics),
            "read_old": read_old,
            "credit": credit,
            "ack_timeout_ms": ack_timeout_ms,
            "ttl_ms": ttl_ms,
        }
        self._take_over = take_over
        self._hops = 0
        self._served: int | None = None
        """The last link over which it was served."""
        self._current: Link | None = None
        """The link over which the subscription is served now."""
        self._acks: dict[Place, Item] = {}
        """To be sent: the latest of each partition."""
        self._waiting: dict[Place, list[tuple[int, Token | None]]] = {}
        """Sent, or to be sent, and not durable yet."""
        self._unacked: dict[tuple[int, Place], deque[int]] = {}
        """What came over a link and is not acked, in the order in which it came."""
        self._remembered: set[tuple[Place, int]] = set()
        """Acked, but not durably: not to be handed out again."""
        self._unsubscribing: Token | None = None
        self.resumed = False
        self.times_inactive = 0

    # --- what is done with messages

    def ack(self, item: Item, token: Token | None) -> None:
        """Sent with the next effects. The token is resolved when the place is durable behind the message."""
        if self.ended is not None:
            self._resolve(
                token, Closed(f"{item!r}: the subscription was closed; the message will come again")
            )
        elif not self.holds(item):
            self._remember(item.place, self._done_with(item))
            self._resolve(
                token, LeaseLost(f"{item!r}: its connection ended before the ack: it may come again")
            )
        else:
            latest = self._acks.get(item.place)
            if latest is None or latest.order < item.order:
                self._acks[item.place] = item
            waiting = self._waiting.setdefault(item.place, [])
            waiting.extend((offset, None) for offset in self._done_with(item))
            waiting.append((item.offset, token))

    def take(self) -> Item | None:
        while (item := super().take()) is not None:
            if not self._is_remembered(item):
                return item
            self.ack(item, None)
        return None

    def unsubscribe(self, token: Token) -> None:
        """Forgets the subscription for good, places and all."""
        if self._current is None:
            self._resolve(token, LeaseLost("not connected at the moment: unsubscribe again"))
            return
        self._unsubscribing = token
        self._send(self._current, compose("unsubscribe"))

    def holds(self, item: Item) -> bool:
        return self._current is not None and item.link == self._current.number

    def drain(self) -> None:
        self.ready.clear()

    @property
    def has_words(self) -> bool:
        return bool(self._acks) or super().has_words

    @property
    def is_served(self) -> bool:
        return self._current is not None

    @property
    def is_settled(self) -> bool:
        return not self._acks and not any(self._waiting.values())

    # --- the link

    def _query(self) -> str:
        return f"?subscription={quote(self._name, safe='')}"

    def _opening(self, link: Link) -> str:
        # A broker may not have noticed yet that our last connection is gone: it was ours, so it is taken over.
        take_over = self._take_over or self._served is not None
        return compose(
            "subscribe", subscription=self._name, encoding="batch", take_over=take_over, **self._wish
        )

    def _hear(self, link: Link, said: Frame, now: float) -> None:
        match said:
            case Batches():
                self._take_in(link, said)
            case Acked():
                for position in said.positions:
                    self._became_durable(position)
            case Subscribed():
                self._welcomed(link)
                self._hops, self._current, self.resumed = 0, link, said.resumed
                self._begin(link)
            case Elsewhere():
                self._bases.appendleft(base_of(said.url))
            case Inactive():
                self.times_inactive += 1
                link.trouble = Trouble("inactive", said.message)
            case Unsubscribed():
                self._resolve(self._unsubscribing, None)
                self._unsubscribing = None
                self._end(Closed("the subscription was ended"))
            case _:
                pass  # a queue's

    def _begin(self, link: Link) -> None:
        """Only of the link before this one may something be acked that has not come again."""
        self._unacked = {key: unacked for key, unacked in self._unacked.items() if key[0] == self._served}
        self._served = link.number

    def _reroute(self, link: Link, loss: Loss, now: float) -> None:
        if loss.redirect is not None:
            self._bases.appendleft(base_of(loss.redirect))
        was_sent_away = loss.redirect is not None or loss.close_code == 4421
        self._hops += was_sent_away
        if not was_sent_away or self._hops > HOPS_MAX:
            self._pause(link.base, now)
            self._hops = 0

    def _forget(self, link: Link, loss: Loss | None) -> None:
        if link is self._current:
            self._current = None
        reason = "the connection ended" if loss is not None else "it was closed"
        for place, waiting in self._waiting.items():
            self._remember(place, [offset for offset, _token in waiting])
            for offset, token in waiting:
                error = LeaseLost(
                    f"{place.topic}-{place.partition} at {offset}: {reason} before its ack was durable"
                )
                self._resolve(token, error)
        self._waiting.clear()
        self._acks.clear()
        if self._unsubscribing is not None:
            self._resolve(self._unsubscribing, LeaseLost(f"{reason} before the subscription was forgotten"))
            self._unsubscribing = None

    # --- messages

    def _take_in(self, link: Link, batches: Batches) -> None:
        place = Place(batches.head.topic, batches.head.partition)
        unacked = self._unacked.setdefault((link.number, place), deque())
        try:
            for _which, record in records_within(batches.data, batches.head.offsets):
                item = self._make(place, record, link=link.number, order=self._next_order())
                unacked.append(record.offset)
                self.ready.append(item)
        except BatchError as problem:
            at = f"{place.topic}-{place.partition} from {batches.head.offsets[0][0]}"
            self._end(
                Garbled(f"{at}: records that cannot be read: {problem}: move the group's offset behind them")
            )
            return
        while self.ready and self._is_remembered(self.ready[0]):
            self.ack(self.ready.popleft(), None)

    def _done_with(self, item: Received) -> list[int]:
        """The offsets that an ack of this message is for: its own, and what came before it."""
        unacked = self._unacked.get((item.link, item.place), deque())
        if item.offset not in unacked:
            return []
        done: list[int] = []
        while not done or done[-1] != item.offset:
            done.append(unacked.popleft())
        return done

    def _remember(self, place: Place, offsets: list[int]) -> None:
        room = REMEMBERED_MAX - len(self._remembered)
        self._remembered.update((place, offset) for offset in offsets[:room])

    def _is_remembered(self, item: Received) -> bool:
        """Whether it was acked before it came again, so that it can be acked now instead of being handed out.

        Not if something before it is not acked, which a deferred message can be: an ack is for that as well.
        """
        key = item.place, item.offset
        if key not in self._remembered:
            return False
        self._remembered.discard(key)
        return self._unacked[item.link, item.place][0] == item.offset

    def _became_durable(self, position: Position) -> None:
        place = Place(position.topic, position.partition)
        later = []
        for offset, token in self._waiting.pop(place, []):
            if position.covers(offset):
                self._resolve(token, None)
            else:
                later.append((offset, token))
        if later:
            self._waiting[place] = later

    def _speak(self, now: float) -> None:
        if self._current is None:
            return
        acks, self._acks = self._acks, {}
        for place, item in acks.items():
            frame = compose("ack", topic=place.topic, partition=place.partition, offset=item.offset)
            self._send(self._current, frame)

    def _resolve(self, token: Token | None, error: Closed | LeaseLost | None) -> None:
        if token is not None:
            self._effects.append(Resolve(token, error))
