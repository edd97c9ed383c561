"""A client's session with the broker's WebSockets, without the sockets: sessions decide, drivers do the I/O.

`queue` and `subscribe` each open a *session*: some connections, received records that were not taken yet, and
requests that the broker has not answered. A driver (thread_driver.py, aio/driver.py) reports events to the session and
carries out the effects that the session returns:

    events     found, not_found (the nodes' HTTP addresses), connected, received, disconnected
    effects    FindNodes, Connect, Send, Disconnect, Resolve (the answer to an ack that a caller may wait for)

A session has neither a clock nor randomness of its own: the time comes with each call (seconds, monotonic), Random is
an argument. So the blocking and the asyncio client behave the same, and tests need no network.

Invariants:
 1. Connection ids are never reused; an event of a connection that is gone changes nothing.
 2. Once `ended` is set, the session opens no connection, and every promise has been resolved.
 3. Records in `ready` came over a connection that is open: when a connection breaks, the broker takes them back.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.client.errors import ClientError, Closed, Unreachable
from penstock.client.frames import ErrorFrame, Frame, parse
from penstock.client.http_refusals import refusal
from penstock.client.received_record import ReceivedRecord

FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 5.0
"""Between attempts to reach the same node. A failover takes one to three seconds: the client should notice it soon."""
REDIRECTS_MAX: Final = 5
"""Redirects that are followed without a pause. After more, the nodes have not agreed yet on who is in charge."""

FATAL_CLOSE_CODES: Final = range(4400, 4500)
RETRIABLE_CLOSE_CODES: Final = frozenset({4401, 4408, 4421})
"""A broker closes with 44xx when a retry would get the same answer, except 4401 (the login has expired, and the next
connection logs in again), 4408 (too slow) and 4421 (wrong node)."""

Item = TypeVar("Item", bound=ReceivedRecord)


class Promise(Protocol):
    """A caller may wait until it is resolved."""

    def resolve(self, error: ClientError | None) -> None: ...


class FindNodes(NamedTuple):
    """Ask the cluster for the nodes' HTTP addresses."""


class Connect(NamedTuple):
    connection_id: int
    url: str


class Send(NamedTuple):
    connection_id: int
    text: str


class Disconnect(NamedTuple):
    connection_id: int


class Resolve(NamedTuple):
    promises: Sequence[Promise]
    error: ClientError | None


Effect = FindNodes | Connect | Send | Disconnect | Resolve


class ConnectionLoss(NamedTuple):
    """Why a connection broke, or could not be made."""

    reason: str
    close_code: int | None = None
    redirect: str | None = None
    denied: ClientError | None = None
    """A node has refused the connection, or cannot be trusted."""


class SessionConnection:
    """One connection of a session, from the moment the session asks for it."""

    def __init__(self, connection_id: int, node_url: str) -> None:
        self.connection_id = connection_id
        self.node_url = node_url
        self.is_open = False
        self.error: ErrorFrame | None = None
        """The error that the broker sent before it closed the connection."""


class Session(Generic[Item]):
    """Common to queues and subscriptions: connecting to a node, reconnecting, and giving up."""

    path: str

    def __init__(self, *, random: Random, reconnect_timeout_s: float | None, last_problem: str) -> None:
        """`reconnect_timeout_s`: the session ends after this time without any open connection; None: never.
        `last_problem`: the text of that error if no node ever answers."""
        self.ready: deque[Item] = deque()
        self.ended: ClientError | None = None
        self.reconnects = 0
        self._has_lost_acks = False
        self._random = random
        self._reconnect_timeout_s = reconnect_timeout_s
        self._effects: list[Effect] = []
        self._connections: dict[int, SessionConnection] = {}
        self._last_connection_id = 0
        self._received = 0
        self._node_urls: deque[str] = deque()
        """Nodes to try, in this order, when no connection is left."""
        self._failures: dict[str, int] = {}
        """Failed attempts since the node was last reached; "" counts the requests for the list of nodes."""
        self._not_before: dict[str, float] = {}
        self._is_finding = False
        self._disconnected_since: float | None = None
        self._last_problem = last_problem

    # --- events

    def found(self, urls: Sequence[str], now: float) -> None:
        self._is_finding = False
        self._node_urls = deque(map(websocket_url, urls))
        if not self._node_urls:
            self._last_problem = "no node has an HTTP port (penstock serve --http)"

    def not_found(self, error: ClientError, now: float) -> None:
        self._is_finding = False
        if error.retriable:
            self._last_problem = str(error)
        else:
            self._end(error)

    def connected(self, connection_id: int, now: float) -> None:
        connection = self._connections.get(connection_id)
        if connection is None:
            self._effects.append(Disconnect(connection_id))  # (1)
            return
        connection.is_open = True
        self._send(connection, self._first_frame(connection))

    def received(self, connection_id: int, data: str | bytes, now: float) -> None:
        connection = self._connections.get(connection_id)
        if connection is None or self.ended is not None:
            return
        try:
            frame = parse(data)
        except ClientError as garbled:
            self._end(garbled)
            return
        if isinstance(frame, ErrorFrame):
            connection.error = frame
        elif frame is not None:
            self._handle(connection, frame, now)

    def disconnected(self, connection_id: int, loss: ConnectionLoss, now: float) -> None:
        connection = self._connections.pop(connection_id, None)
        if connection is None or self.ended is not None:
            return
        self._drop(connection, loss)
        self.ready = deque(item for item in self.ready if item.connection_id != connection_id)  # (3)
        error = final_error(connection, loss)
        if error is not None:
            self._end(error)
            return
        self.reconnects += connection.is_open
        reason = connection.error.message if connection.error else loss.reason
        self._last_problem = f"{connection.node_url}: {reason}"
        self._plan_reconnect(connection, loss, now)

    # --- for the driver

    def take(self) -> Item | None:
        """The next record, if there is one."""
        return self.ready.popleft() if self.ready else None

    def take_effects(self, now: float) -> list[Effect]:
        if self.ended is None:
            self._not_before = {url: due for url, due in self._not_before.items() if due > now}
            self._keep_connected(now)
            self._send_pending(now)
        effects, self._effects = self._effects, []
        return effects

    def wake_at(self) -> float | None:
        """When `take_effects` may return something although no event has happened."""
        times = list(self._not_before.values())
        if self._disconnected_since is not None and self._reconnect_timeout_s is not None:
            times.append(self._disconnected_since + self._reconnect_timeout_s)
        return min(times, default=None)

    @property
    def has_effects(self) -> bool:
        """Whether `take_effects` would return something now."""
        return bool(self._effects)

    @property
    @abstractmethod
    def is_served(self) -> bool:
        """Whether a node delivers to this session now. Only then an idle session means an empty queue."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether the broker has answered everything that was sent."""

    def take_lost_acks(self) -> bool:
        """Whether acks were lost for good since the last call: their records come again."""
        has_lost, self._has_lost_acks = self._has_lost_acks, False
        return has_lost

    @abstractmethod
    def drain(self) -> None:
        """Hands out no more records."""

    def fail(self, error: ClientError) -> None:
        """Ends the session because of an error in this process."""
        self._end(error)

    def end(self) -> None:
        """Closes all connections. Promises that are not resolved get an error."""
        self._end(Closed("it was closed"))

    # --- for subclasses

    @abstractmethod
    def _first_frame(self, connection: SessionConnection) -> str: ...

    @abstractmethod
    def _handle(self, connection: SessionConnection, frame: Frame, now: float) -> None: ...

    @abstractmethod
    def _send_pending(self, now: float) -> None:
        """Turns pending requests into frames."""

    @abstractmethod
    def _drop(self, connection: SessionConnection, loss: ConnectionLoss | None) -> None:
        """Forgets what was received and sent over a connection that is gone (None: because the session has ended)."""

    @abstractmethod
    def _plan_reconnect(self, connection: SessionConnection, loss: ConnectionLoss, now: float) -> None:
        """Decides which node to try next, and when."""

    def _send(self, connection: SessionConnection, text: str) -> None:
        self._effects.append(Send(connection.connection_id, text))

    def _resolve(self, promise: Promise | None, error: ClientError | None) -> None:
        if promise is not None:
            self._effects.append(Resolve((promise,), error))

    def _resolve_all(self, promises: Sequence[Promise]) -> None:
        """All of them have succeeded."""
        if promises:
            self._effects.append(Resolve(promises, None))

    def _next_order(self) -> int:
        self._received += 1
        return self._received

    def _reset_backoff(self, connection: SessionConnection) -> None:
        """The node serves this session: the next attempt to reach it starts with the shortest pause."""
        self._failures.pop(connection.node_url, None)
        self._failures.pop("", None)

    def _query(self) -> str:
        return ""

    def _new_connection(self, connection_id: int, node_url: str) -> SessionConnection:
        return SessionConnection(connection_id, node_url)

    def _connect(self, node_url: str) -> None:
        self._last_connection_id += 1
        connection_id = self._last_connection_id
        self._connections[connection_id] = self._new_connection(connection_id, node_url)
        self._not_before.pop(node_url, None)
        self._effects.append(Connect(connection_id, f"{node_url}{self.path}{self._query()}"))

    def _back_off(self, node_url: str, now: float) -> None:
        """Half of the pause is random, so that a thousand clients do not reconnect at the same moment."""
        failures = self._failures[node_url] = self._failures.get(node_url, 0) + 1
        pause_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16))
        self._not_before[node_url] = now + pause_s * self._random.uniform(0.5, 1.0)

    def _may_connect(self, node_url: str) -> bool:
        return node_url not in self._not_before

    def _keep_connected(self, now: float) -> None:
        if any(connection.is_open for connection in self._connections.values()):
            self._disconnected_since = None
            return
        timeout_s = self._reconnect_timeout_s
        if self._disconnected_since is None:
            self._disconnected_since = now
        elif timeout_s is not None and now - self._disconnected_since >= timeout_s:
            self._end(Unreachable(f"{self._last_problem}; no node was reached for {timeout_s:.0f} s"))
            return
        if not self._connections and not self._is_finding:
            self._connect_to_next_node(now)

    def _connect_to_next_node(self, now: float) -> None:
        """At the end of the list, the session asks for the list again."""
        while self._node_urls:
            node_url = self._node_urls.popleft()
            if self._may_connect(node_url):
                self._connect(node_url)
                return
        if self._may_connect(""):
            self._not_before.clear()  # the pause between two lists replaces the pauses of the nodes
            self._is_finding = True
            self._back_off("", now)
            self._effects.append(FindNodes())

    def _end(self, error: ClientError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        self.ready.clear()
        self._not_before.clear()
        self._disconnected_since = None
        for connection in self._connections.values():
            self._drop(connection, None)
            self._effects.append(Disconnect(connection.connection_id))
        self._connections.clear()


def final_error(connection: SessionConnection, loss: ConnectionLoss) -> ClientError | None:
    """The error that ends the session; None if another try may succeed."""
    if loss.denied is not None:
        return None if loss.denied.retriable else loss.denied
    if loss.close_code in FATAL_CLOSE_CODES and loss.close_code not in RETRIABLE_CLOSE_CODES:
        error = connection.error or ErrorFrame(loss.reason)
        return refusal(error.code, error.message)
    return None


def websocket_url(url: str) -> str:
    """`ws://host:port` of a node, from any of its addresses, http or ws."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    scheme = "wss" if parts.scheme in ("https", "wss") else "ws"
    return f"{scheme}://{parts.netloc}"
