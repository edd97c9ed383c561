"""The context of a request: its API, its caller and connection, and lookups of the resources that it names."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from penstock.cluster import ClusterState, Topic
from penstock.kafka.handlers.names import Names
from penstock.kafka.handlers.results import Results
from penstock.node import Node, Partition
from penstock.node.limits.memory import Reservation, unlimited
from penstock.types import CLUSTER_NAME, Caller, Operation, ResourceType

if TYPE_CHECKING:
    from penstock.kafka.handlers.login import Login

Handler = Callable[["RequestContext", Any], Any]
"""Returns the response, None if the client wants none, or a coroutine for it when there is something to wait for."""


def _not_loaded(context: "RequestContext", request: Any) -> Any:
    raise AssertionError("registry.find_api loads the handler")


class Api(NamedTuple):
    """One API as it is served: a row of the table in `registry`."""

    min_version: int
    max_version: int
    module: str
    """The module of this package whose function with the API's name is the handler."""
    on_topic: Operation = Operation.UNKNOWN
    """The operation that a caller does on each topic that its request names; UNKNOWN if requests name none. The same
    for groups, for the cluster and for transactional ids."""
    on_group: Operation = Operation.UNKNOWN
    on_cluster: Operation = Operation.UNKNOWN
    on_transactional_id: Operation = Operation.UNKNOWN
    controller: bool = False
    """Whether only the controller can answer; other nodes forward the request to it."""
    names: tuple[Names, ...] = ()
    """The lists of a request in which repeated names are merged."""
    repeatable: bool = False
    """Whether a request that was executed twice has done no more than one. A node that asks another one sends such a
    request again when it does not hear whether it was executed."""
    large: bool = False
    """Whether responses may be large, so that they are encoded off the event loop."""
    results: Results | None = None
    """Where the audit log finds what was changed; None: nothing is."""
    before_login: bool = False
    """Whether a client that has not logged in may send it."""
    handler: Handler = _not_loaded


class ConnectionFacts(Protocol):
    """The part of a connection that handlers read and set."""

    peer: str
    client_software: str
    login: "Login | None"
    """None: clients do not log in on this port."""
    is_audited: bool
    """False for requests that are a part of something that is reported itself."""
    is_inner: bool
    """Whether a node sends the request, which looks for the right node by itself."""

    @property
    def listener_name(self) -> str:
        """The listener by which the client came: it is told the addresses of this one."""
        ...

    def send_away(self) -> None:
        """Closes the connection after the response to this request, so that the client tries another node, which may
        know more than this one."""
        ...

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Calls back once, soon after the connection has ended, whatever the reason; at once if it has already."""
        ...

    def hold(self) -> Callable[[], None]:
        """Starts no other request of this connection until the returned function is called: this request has not taken
        effect yet, and a later one must not overtake it. Calling the function twice does no harm."""
        ...


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request: who sent it, over which connection, for which API in which version.

    The lookups below use the operation of the API's row, so that the table in `registry` states what each API needs.
    """

    node: Node
    connection: ConnectionFacts
    caller: Caller
    api: Api
    api_version: int
    is_checked: bool = True
    """Whether stored bytes are compared with their checksums before they are returned. The node's own readers do it by
    themselves, and skip what they cannot read."""
    memory: Reservation = msgspec.field(default_factory=unlimited)
    """For records that are read for the response. They are given back when it has been sent, or the client has gone."""

    def topic(self, name: str) -> Topic:
        return self.node.resources.topic(self.caller, name, self.api.on_topic)

    def named_topic(self, name: str | None, topic_id: UUID) -> Topic:
        """The topic that a request names by id, or by name with the zero id."""
        return self.node.resources.named_topic(self.caller, name, topic_id, self.api.on_topic)

    def topic_of(self, topic: str, index: int) -> Topic:
        """The topic, which has a partition of this index."""
        return self.node.resources.topic_of(self.caller, topic, index, self.api.on_topic)

    def visible_topics(self) -> list[Topic]:
        return self.node.resources.topics(self.caller, self.api.on_topic)

    def check_topic_name(self, name: str) -> None:
        """Raises TOPIC_AUTHORIZATION_FAILED if the caller may not; the topic need not exist."""
        self.node.resources.check(self.caller, self.api.on_topic, ResourceType.TOPIC, name)

    def led_partition(self, topic: str, index: int, epoch: int) -> Partition:
        return self.node.resources.led_partition(self.caller, topic, index, self.api.on_topic, epoch)

    def check_group(self, group_id: str) -> None:
        self.node.resources.check_group(self.caller, group_id, self.api.on_group)

    def check_transactional_id(self, transactional_id: str) -> None:
        """Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the caller may not."""
        operation, kind = self.api.on_transactional_id, ResourceType.TRANSACTIONAL_ID
        self.node.resources.check(self.caller, operation, kind, transactional_id)

    def cluster(self) -> ClusterState:
        """The whole cluster's state, for callers that may do the API's operation on the cluster."""
        return self.node.resources.cluster(self.caller, self.api.on_cluster)

    def allowed_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The bit field that clients may ask for."""
        return self.node.resources.allowed_operations(self.caller, resource_type, name)
