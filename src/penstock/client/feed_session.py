"""A subscriber: one link, to the node where its subscription is at home; messages in the log's order; acks.

An ack is for a message and for all that came before it of the same partition. Acks are gathered until the driver asks
for effects, and only the last of each partition is sent.

When a link is gone, the next one begins behind what was acked durably. What was taken from an old one, however many
links ago, may be acked later (late_acks.py remembers it), and is then acked over the link that is there now, or over
the next one, and not handed out a second time. This is why slow work costs no duplicates in a process that lives on.
What is still in hand and not acked when its copy comes is handed out again to who asks for more: nobody can tell work
that is slow from a message that was dropped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
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
from penstock.client.late_acks import Came, LateAcks
from penstock.client.received import Place, records_within
from penstock.client.session import HOPS_MAX, Item, Link, Loss, Resolve, Session, Token, base_of
from penstock.errors import BatchError

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
        self._was_served = False
        self._current: Link | None = None
        """The link over which the subscription is served now."""
        self._acks: dict[Place, Came] = {}
        """To be sent: the latest of each partition."""
        self._waiting: dict[Place, list[tuple[Came, Token | None]]] = {}
        """Sent, or to be sent, and not durable yet."""
        self._unacked: dict[Place, deque[Came]] = {}
        """What came over the current link and is not acked, in the order in which it came."""
        self._late = LateAcks()
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
            self._late.ack(item)
            self._resolve(
                token, LeaseLost(f"{item!r}: its connection ended before the ack: it may come again")
            )
            self._catch_up(item.place)
        else:
            self._ack_up_to(item.place, Came.of(item))
            self._waiting[item.place].append((Came.of(item), token))
            self._catch_up(item.place)

    def _ack_up_to(self, place: Place, came: Came) -> None:
        """For this one and all before it that came over the current link."""
        latest = self._acks.get(place)
        if latest is None or latest.order < came.order:
            self._acks[place] = came
        unacked = self._unacked.get(place, deque())
        waiting = self._waiting.setdefault(place, [])
        while unacked and unacked[0].order <= came.order:
            waiting.append((unacked.popleft(), None))

    def _catch_up(self, place: Place) -> None:
        """Acks over the current link what was acked before it came again, and takes it from who has not seen it.

        Only up to the first that was not acked, which a deferred message can be: an ack is for that as well.
        """
        done = None
        for came in self._unacked.get(place, ()):
            if not self._late.was_acked(place, came):
                break
            done = came
        if done is None or self._current is None:
            return
        self._ack_up_to(place, done)
        self.ready = deque(item for item in self.ready if item.place != place or item.order > done.order)

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
        take_over = self._take_over or self._was_served
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
                self._was_served = True
                self._late.resume(
                    {Place(one.topic, one.partition): one for one in said.positions}, is_same=said.resumed
                )
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
            self._keep_taken(link)
        reason = "the connection ended" if loss is not None else "it was closed"
        for place, waiting in self._waiting.items():
            self._late.remember(place, [came for came, _token in waiting])
            for came, token in waiting:
                error = LeaseLost(
                    f"{place.topic}-{place.partition} at {came.offset}: {reason} before its ack was durable"
                )
                self._resolve(token, error)
        self._waiting.clear()
        self._acks.clear()
        if self._unsubscribing is not None:
            self._resolve(self._unsubscribing, LeaseLost(f"{reason} before the subscription was forgotten"))
            self._unsubscribing = None

    def _keep_taken(self, link: Link) -> None:
        """What nobody has taken can never be acked, for it is not handed out any more; the rest may be, late."""
        waits_since = next((item.order for item in self.ready if item.link == link.number), None)
        for place, unacked in self._unacked.items():
            taken = [one for one in unacked if waits_since is None or one.order < waits_since]
            self._late.keep(link.number, place, taken)
        self._unacked.clear()

    # --- messages

    def _take_in(self, link: Link, batches: Batches) -> None:
        place = Place(batches.head.topic, batches.head.partition)
        unacked = self._unacked.setdefault(place, deque())
        try:
            for _which, record in records_within(batches.data, batches.head.offsets):
                item = self._make(place, record, link=link.number, order=self._next_order())
                unacked.append(Came.of(item))
                self.ready.append(item)
        except BatchError as problem:
            at = f"{place.topic}-{place.partition} from {batches.head.offsets[0][0]}"
            self._end(
                Garbled(f"{at}: records that cannot be read: {problem}: move the group's offset behind them")
            )
            return
        self._catch_up(place)

    def _became_durable(self, position: Position) -> None:
        place = Place(position.topic, position.partition)
        self._late.became_durable(place, position)
        later = []
        for came, token in self._waiting.pop(place, []):
            if position.covers(came.offset):
                self._resolve(token, None)
            else:
                later.append((came, token))
        if later:
            self._waiting[place] = later

    def _speak(self, now: float) -> None:
        if self._current is None:
            return
        acks, self._acks = self._acks, {}
        for place, came in acks.items():
            frame = compose("ack", topic=place.topic, partition=place.partition, offset=came.offset)
            self._send(self._current, frame)

    def _resolve(self, token: Token | None, error: Closed | LeaseLost | None) -> None:
        if token is not None:
            self._effects.append(Resolve(token, error))
