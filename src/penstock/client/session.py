"""What a session with a broker's WebSockets is made of, without the sockets: sessions decide, drivers do.

A *session* is what `queue` or `subscribe` opened: some connections ("links"), what came over them and waits to be
taken, what was said and is not answered. A driver (threads.py, aio/driver.py) tells a session what happened and does
what it asks for:

    the driver tells    found, not_found (where the HTTP ports are), connected, received, lost
    the session asks    Find, Dial, Send, HangUp, Resolve (an ack that somebody may wait for)

Neither clock nor chance is in here: the time comes with each call (seconds, monotonic), Random is given. So the
blocking client and the asynchronous one have the same behaviour, and tests need no network.

Invariants:
 1. A link has one number, never used again; what is told of a link that is gone changes nothing.
 2. After `ended` is set, nothing is dialled, and every ack that anybody may wait for has been resolved.
 3. What waits in `ready` came over a link that is open: what a broker has taken back is not handed out.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.client.errors import ClientError, Closed, Denied, Unreachable
from penstock.client.frames import Frame, Trouble, parse
from penstock.client.received import Received

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
"""Between attempts to reach the same node. A failover takes one to two seconds: it should be noticed soon after."""
HOPS_MAX: Final = 5
"""Redirects without a pause between them; more is a cluster that has not agreed yet who is in charge."""

FATAL_CLOSES: Final = range(4400, 4500)
PASSING_CLOSES: Final = frozenset({4408, 4421})
"""Brokers close with 44xx where asking again would be answered in the same way; too slow and elsewhere would not."""

Item = TypeVar("Item", bound=Received)


class Token(Protocol):
    """Somebody may wait for it."""

    def resolve(self, error: ClientError | None) -> None: ...


class Find(NamedTuple):
    """Ask the cluster where its HTTP ports are."""


class Dial(NamedTuple):
    link: int
    url: str


class Send(NamedTuple):
    link: int
    text: str


class HangUp(NamedTuple):
    link: int


class Resolve(NamedTuple):
    token: Token
    error: ClientError | None


Effect = Find | Dial | Send | HangUp | Resolve


class Loss(NamedTuple):
    """Why a link is gone, or never was."""

    reason: str
    close_code: int | None = None
    redirect: str | None = None
    denied: Denied | None = None


class Link:
    """One connection of a session, from the moment it is dialled."""

    def __init__(self, number: int, base: str) -> None:
        self.number = number
        self.base = base
        self.is_open = False
        self.trouble: Trouble | None = None
        """What the broker said before it closed."""


class Session(Generic[Item]):
    """What queues and subscriptions share: reaching a node, again and again, and giving up."""

    path: str

    def __init__(self, *, random: Random, patience_s: float | None) -> None:
        """`patience_s`: how long it may be without any link before it ends; None: for ever."""
        self.ready: deque[Item] = deque()
        self.ended: ClientError | None = None
        self.reconnects = 0
        self._random = random
        self._patience_s = patience_s
        self._effects: list[Effect] = []
        self._links: dict[int, Link] = {}
        self._numbers = 0
        self._received = 0
        self._bases: deque[str] = deque()
        """Nodes to try when no link is left, in this order."""
        self._failures: dict[str, int] = {}
        """Attempts in vain since the node was last reached; "" counts for the search itself."""
        self._not_before: dict[str, float] = {}
        self._finding = False
        self._alone_since: float | None = None
        self._last_reason = "nobody has answered yet"

    def seek(self, otherwise: str) -> None:
        """What to say if nobody ever answers."""
        self._last_reason = otherwise

    # --- what the driver tells

    def found(self, urls: Sequence[str], now: float) -> None:
        self._finding = False
        self._bases = deque(map(base_of, urls))
        if not self._bases:
            self._last_reason = "no node has an HTTP port (penstock serve --http)"

    def not_found(self, error: ClientError, now: float) -> None:
        self._finding = False
        if error.retriable:
            self._last_reason = str(error)
        else:
            self._end(error)

    def connected(self, number: int, now: float) -> None:
        link = self._links.get(number)
        if link is None:
            self._effects.append(HangUp(number))  # (1)
            return
        link.is_open = True
        self._send(link, self._opening(link))

    def received(self, number: int, frame: str | bytes, now: float) -> None:
        link = self._links.get(number)
        if link is None or self.ended is not None:
            return
        try:
            said = parse(frame)
        except ClientError as garbled:
            self._end(garbled)
            return
        if isinstance(said, Trouble):
            link.trouble = said
        elif said is not None:
            self._hear(link, said, now)

    def lost(self, number: int, loss: Loss, now: float) -> None:
        link = self._links.pop(number, None)
        if link is None or self.ended is not None:
            return
        self._forget(link, loss)
        self.ready = deque(item for item in self.ready if item.link != number)  # (3)
        refusal = refusal_of(link, loss)
        if refusal is not None:
            self._end(refusal)
            return
        self.reconnects += link.is_open
        self._last_reason = f"{link.base}: {link.trouble.message if link.trouble else loss.reason}"
        self._reroute(link, loss, now)

    # --- what the driver asks

    def take(self) -> Item | None:
        """The next one, if there is one."""
        return self.ready.popleft() if self.ready else None

    def take_effects(self, now: float) -> list[Effect]:
        if self.ended is None:
            self._not_before = {base: due for base, due in self._not_before.items() if due > now}
            self._keep_linked(now)
            self._speak(now)
        effects, self._effects = self._effects, []
        return effects

    def wake_at(self) -> float | None:
        """When `take_effects` may have something although nothing happened."""
        times = list(self._not_before.values())
        if self._alone_since is not None and self._patience_s is not None:
            times.append(self._alone_since + self._patience_s)
        return min(times, default=None)

    @property
    def has_words(self) -> bool:
        """Whether `take_effects` has something to be done at once."""
        return bool(self._effects)

    @property
    @abstractmethod
    def is_served(self) -> bool:
        """Whether a node hands out to it at the moment: without one, that nothing comes means nothing."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether all that was said has been answered."""

    @abstractmethod
    def drain(self) -> None:
        """No more is to be handed out."""

    def fail(self, error: ClientError) -> None:
        """Ends it because something is wrong on this side."""
        self._end(error)

    def end(self) -> None:
        """Hangs up. What was not answered is resolved with an error."""
        self._end(Closed("it was closed"))

    # --- for queues and subscriptions

    @abstractmethod
    def _opening(self, link: Link) -> str:
        """The first frame."""

    @abstractmethod
    def _hear(self, link: Link, said: Frame, now: float) -> None: ...

    @abstractmethod
    def _speak(self, now: float) -> None:
        """Puts what waits to be said into frames."""

    @abstractmethod
    def _forget(self, link: Link, loss: Loss | None) -> None:
        """What was held or said over a link that is gone (None: because the session has ended)."""

    @abstractmethod
    def _reroute(self, link: Link, loss: Loss, now: float) -> None:
        """Where to go now."""

    def _send(self, link: Link, text: str) -> None:
        self._effects.append(Send(link.number, text))

    def _next_order(self) -> int:
        self._received += 1
        return self._received

    def _welcomed(self, link: Link) -> None:
        """The node serves: it is not to be waited for the next time."""
        self._failures.pop(link.base, None)
        self._failures.pop("", None)

    def _query(self) -> str:
        return ""

    def _new_link(self, number: int, base: str) -> Link:
        return Link(number, base)

    def _dial(self, base: str) -> None:
        self._numbers += 1
        self._links[self._numbers] = self._new_link(self._numbers, base)
        self._not_before.pop(base, None)
        self._effects.append(Dial(self._numbers, f"{base}{self.path}{self._query()}"))

    def _pause(self, base: str, now: float) -> None:
        """Not at once again; half of the time is by chance, so that a thousand clients do not come together."""
        failures = self._failures[base] = self._failures.get(base, 0) + 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
        self._not_before[base] = now + pause_s * self._random.uniform(0.5, 1.0)

    def _may_dial(self, base: str) -> bool:
        return base not in self._not_before

    def _keep_linked(self, now: float) -> None:
        if any(link.is_open for link in self._links.values()):
            self._alone_since = None
            return
        if self._alone_since is None:
            self._alone_since = now
        elif self._patience_s is not None and now - self._alone_since >= self._patience_s:
            self._end(Unreachable(f"{self._last_reason}; no node was reached for {self._patience_s:.0f} s"))
            return
        if not self._links and not self._finding:
            self._try_somebody(now)

    def _try_somebody(self, now: float) -> None:
        """The next node of the list; at its end the list is asked for anew."""
        while self._bases:
            base = self._bases.popleft()
            if self._may_dial(base):
                self._dial(base)
                return
        if self._may_dial(""):
            self._not_before.clear()  # the pause between laps replaces those of the nodes
            self._finding = True
            self._pause("", now)
            self._effects.append(Find())

    def _end(self, error: ClientError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        self.ready.clear()
        self._not_before.clear()
        self._alone_since = None
        for link in self._links.values():
            self._forget(link, None)
            self._effects.append(HangUp(link.number))
        self._links.clear()


def refusal_of(link: Link, loss: Loss) -> ClientError | None:
    """What ends a session for good; None for what may be better the next time."""
    if loss.denied is not None:
        return None if loss.denied.retriable else loss.denied
    if loss.close_code in FATAL_CLOSES and loss.close_code not in PASSING_CLOSES:
        said = link.trouble or Trouble(loss.reason)
        return Denied(said.code, said.message)
    return None


def base_of(url: str) -> str:
    """`ws://host:port` of any address of a node, be it given as http or as ws."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    scheme = "wss" if parts.scheme in ("https", "wss") else "ws"
    return f"{scheme}://{parts.netloc}"
