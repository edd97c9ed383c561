"""One node with its ports open: `penstock serve` and the embedded broker both run this."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

import msgspec

from penstock.config import Address, Listener, NodeConfig
from penstock.config.cluster import check_no_inter_node_settings
from penstock.errors import ConfigError
from penstock.kafka.handlers.inner_client import InnerClient, KafkaCalls
from penstock.kafka.server import KafkaListener
from penstock.late_loading import LOADING
from penstock.log import DataFolder, Disk
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.scheduling.clock import Clock, SystemClock
from penstock.node.scheduling.loop_watchdog import LoopWatchdog
from penstock.types import NO_EVENTS, EventSink
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.node.membership.links import Links, MakeLinks
    from penstock.node.membership.network import Network
    from penstock.node.peers import PeerHello, TransportEvents
    from penstock.node.peers.encryption import PeerEncryption
    from penstock.node.status.status_log import StatusLog
    from penstock.node.subscriptions import SubscriptionManager
    from penstock.web import WebPort

log = logging.getLogger("penstock.service")

LISTEN_BACKLOG = 1024
HTTP_TLS_FIELD = "tls of the HTTP port"
DECLARE_SECONDS = 10.0
"""How long a node that is ready waits for the topics and queues of its config file. They may need other nodes."""


class Service:
    """Opens the ports, starts the node, and stops both in the reverse order. Lives on the running event loop."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        disk: Disk | None = None,
        on_growth: Callable[[int], None] | None = None,
        users: Mapping[str, str] | None = None,
        on_first_user: Callable[[str, str], None] | None = None,
    ) -> None:
        """`users` (with passwords) are made if a cluster that requires login has none; `on_first_user` is called with
        the name and the password of the first one. `on_growth` is called with the number of replicas when there are
        many new ones, and when the web stack was loaded."""
        self.config = config.validate()
        if config.processes != 1:
            expected = "1: a process runs one node; `penstock serve` starts more processes"
            raise ConfigError("processes", config.processes, expected)
        if config.cluster is None:
            has_tls = config.inter_node_tls is not None
            check_no_inter_node_settings(key_file=config.cluster_key_file, has_tls=has_tls)
        self._disk = disk
        self._on_growth = on_growth
        self._users = users
        self._on_first_user = on_first_user
        self.node: Node | None = None
        self._listener: KafkaListener | None = None
        self._http_socket: socket.socket | None = None
        self._cluster_socket: socket.socket | None = None
        self._web: WebPort | None = None
        self._web_starting: asyncio.Task[None] | None = None
        self._status_logs: list[StatusLog] = []
        self._declaring: asyncio.Task[None] | None = None
        self._watchdog: LoopWatchdog | None = None
        self.listeners = config.kafka_listeners
        """With the ports that the system chose where 0 was asked for, once they are bound."""
        self._kafka_sockets: list[socket.socket] = []
        self.http_address = config.http
        self.cluster_address = config.cluster

    async def start(self) -> None:
        """Without a cluster, the node serves when this returns; in a cluster, `wait_ready` tells when. Ports are bound
        first: a port in use must not cost a recovery."""
        try:
            self._check_tls()
            self._bind_kafka()
            links = self._bind_cluster() if self.config.cluster is not None else None
            if self.config.http is not None:
                self._http_socket = _listen(self.config.http, "http")
                self.http_address = _bound(self._http_socket, self.config.http)
            events = self._make_status_logs()
            node = Node(
                self._with_bound_ports(),
                disk=self._disk,
                links=links,
                events=events,
                on_growth=self._on_growth,
                users=self._users,
                on_first_user=self._on_first_user,
            )
            node.events.tell("broker.started", version=VERSION, address=str(self.kafka_address))
            await node.start()
            self.node = node
            for status_log in self._status_logs:
                status_log.start(node.record_forwarder, node.wait_ready)
            KafkaCalls(node)
            node.open_subscribers = lambda: _subscribers(node)
            self._listener = KafkaListener(node)
            await self._listener.start(list(zip(self.listeners, self._kafka_sockets, strict=True)))
            self._open_http()
            self._declare()
            self._watchdog = LoopWatchdog(node.metrics)
            self._watchdog.start()
        except BaseException:
            for kafka_socket in self._kafka_sockets:
                kafka_socket.close()
            if self._cluster_socket is not None:
                self._cluster_socket.close()
            await self.stop()
            raise

    @property
    def kafka_address(self) -> Address:
        """The address of the first listener."""
        return self.listeners[0].bind

    @property
    def http_url(self) -> str | None:
        if self.http_address is None:
            return None
        scheme = "http" if self.config.http_encryption is None else "https"
        return f"{scheme}://{self.http_address}"

    @property
    def max_connections(self) -> int:
        """Connections of Kafka clients that limits, and the system, allow."""
        assert self._listener is not None
        return self._listener.max_connections

    async def wait_ready(self) -> None:
        """Returns when the node serves clients; raises if it never will."""
        assert self.node is not None
        await self.node.wait_ready()
        if self._declaring is not None:
            await asyncio.wait({self._declaring}, timeout=DECLARE_SECONDS)

    def _declare(self) -> None:
        """Begins to create the topics and queues of the config file."""
        if self.config.topics or self.config.queues:
            assert self.node is not None
            from penstock.web.api.declarations import Declarations

            declarations = Declarations(self.node, self.config.topics, self.config.queues)
            self._declaring = asyncio.get_running_loop().create_task(declarations.run())

    def _check_tls(self) -> None:
        """Certificates that cannot be used must not cost a recovery either, nor be found by the first HTTP client."""
        ports = [(f"tls of listener {one.name}", one.tls) for one in self.listeners if one.tls is not None]
        if self.config.http is not None and self.config.http_encryption is not None:
            ports.append((HTTP_TLS_FIELD, self.config.http_encryption))
        if ports:
            from penstock.node.tls import check_client_port

            for field, settings in ports:
                check_client_port(field, settings)

    def _bind_kafka(self) -> None:
        bound = []
        for listener in self.listeners:
            field = f"bind of listener {listener.name}" if self.config.listeners else "kafka"
            listening = _listen(listener.bind, field)
            self._kafka_sockets.append(listening)
            bound.append(_bound_listener(listener, _bound(listening, listener.bind)))
        self.listeners = tuple(bound)

    def _make_status_logs(self) -> EventSink:
        """The status log, and the audit log if it has a topic of its own."""
        status_topic, audit_topic = self.config.status_topic, self.config.audit_topic
        if not status_topic and not audit_topic:
            return NO_EVENTS
        from penstock.node.status.audit import AuditSplit

        status = self._make_status_log(status_topic) if status_topic else NO_EVENTS
        if not audit_topic or audit_topic == status_topic:
            return status
        return AuditSplit(status, self._make_status_log(audit_topic, watches_errors=False))

    def _make_status_log(self, topic: str, *, watches_errors: bool = True) -> EventSink:
        from penstock.node.status.status_log import StatusLog

        made = StatusLog(
            topic, node_id=self.config.node_id, clock=SystemClock(), watches_errors=watches_errors
        )
        self._status_logs.append(made)
        return made

    def _bind_cluster(self) -> "MakeLinks":
        """Opens the inter-node port, and returns how a node gets its links through it."""
        from penstock.node import frame_kinds
        from penstock.node.membership.datagrams import UdpNetwork
        from penstock.node.membership.links import Links
        from penstock.node.membership.network import BoundNetwork
        from penstock.node.peers import PeerNetwork, read_cluster_key

        assert self.config.cluster is not None
        key = read_cluster_key(self.config.cluster_key_file)
        encryption = self._peer_encryption()
        listening = self._cluster_socket = _listen(self.config.cluster, "cluster")
        bind = self.cluster_address = _bound(listening, self.config.cluster)
        settings, limits, random = self.config.replication, self.config.limits, Random()

        def make_network(hello: "PeerHello", events: "TransportEvents") -> "Network":
            network = PeerNetwork(
                hello,
                events,
                key=key,
                limits=limits,
                silence_ms=settings.peer_silence_ms,
                urgent_kinds={frame_kinds.HEARTBEAT},
                random=random,
                encryption=encryption,
            )
            return BoundNetwork(network, listening)

        def make_links(config: NodeConfig, folder: DataFolder, disk: Disk, clock: Clock) -> "Links":
            return Links(
                config,
                folder,
                disk,
                clock,
                make_network=make_network,
                datagrams=UdpNetwork(),
                bind=bind,
                key=key,
                random=random,
            )

        return make_links

    def _peer_encryption(self) -> "PeerEncryption | None":
        if self.config.inter_node_tls is None:
            return None
        from penstock.node.peers.encryption import PeerEncryption

        return PeerEncryption(self.config.inter_node_tls, self.config.limits)

    async def stop(self) -> None:
        """Hands over the partitions that the node leads, stops accepting requests, flushes, closes. Safe after a failed
        start."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._declaring is not None:
            self._declaring.cancel()
            await asyncio.wait({self._declaring})
        if self.node is not None:
            self.node.events.tell("broker.stopping")
            await self.node.retire()
        if self._web_starting is not None:
            await asyncio.wait([self._web_starting])
        if self._web is not None:
            await self._web.stop()
        elif self._http_socket is not None:
            asyncio.get_running_loop().remove_reader(self._http_socket.fileno())
        if self._http_socket is not None:
            self._http_socket.close()
            self._http_socket = None
        if self._listener is not None:
            await self._listener.stop()
        while self._status_logs:
            await self._status_logs.pop().stop()
        if self.node is not None:
            await self.node.stop()
            self.node = None

    def _with_bound_ports(self) -> NodeConfig:
        """The config with the ports that the system chose where 0 was asked for."""
        first = self.listeners[0]
        reached = self.config.cluster_advertised
        if reached is not None and reached.port == 0 and self.cluster_address is not None:
            reached = Address(reached.host, self.cluster_address.port)
        return msgspec.structs.replace(
            self.config,
            kafka=first.bind,
            advertise=first.advertised,
            listeners=self.listeners if self.config.listeners else (),
            http=self.http_address,
            cluster=self.cluster_address,
            cluster_advertise=reached,
        )

    def _open_http(self) -> None:
        """Opens the HTTP port. The web stack takes as long to import as all the rest: it is loaded with the first
        connection, which waits in the system's queue meanwhile."""
        if self._http_socket is not None:
            asyncio.get_running_loop().add_reader(self._http_socket.fileno(), self._first_http_caller)

    def _first_http_caller(self) -> None:
        assert self._http_socket is not None
        asyncio.get_running_loop().remove_reader(self._http_socket.fileno())
        self._web_starting = asyncio.get_running_loop().create_task(self._start_web())

    async def _start_web(self) -> None:
        assert self._http_socket is not None
        assert self.node is not None
        try:
            await asyncio.get_running_loop().run_in_executor(None, _import_web)
            from penstock.web import WebPort

            web = WebPort(self._http_socket, self.node)
            await web.start()
        except Exception:
            log.exception("the HTTP port cannot be served and is closed")
            self._http_socket.close()
            self._http_socket = None
            return
        self._web = web
        if self._on_growth is not None:
            self._on_growth(self.node.partitions.count)


def _subscribers(node: Node) -> "SubscriptionManager":
    from penstock.kafka.handlers.leader_reader import LeaderReader
    from penstock.node.subscriptions import SubscriptionManager

    return SubscriptionManager(node, LeaderReader(InnerClient(node, BROKER)))


def _import_web() -> None:
    with LOADING:
        import penstock.web  # noqa: F401 - in a thread, so that clients are served meanwhile


def _listen(address: Address, field: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(LISTEN_BACKLOG)
    except OSError as problem:
        sock.close()
        reason = (
            f"an address that is free here ({problem.strerror}); choose another port, or 0 for any free one"
        )
        raise ConfigError(field, str(address), reason) from None
    sock.setblocking(False)
    return sock


def _bound_listener(listener: Listener, bind: Address) -> Listener:
    """The listener with the port that the system chose, also where it is advertised."""
    advertise = listener.advertise
    if advertise is not None and advertise.port == 0:
        advertise = Address(advertise.host, bind.port)
    return msgspec.structs.replace(listener, bind=bind, advertise=advertise)


def _bound(sock: socket.socket, address: Address) -> Address:
    return Address(address.host, sock.getsockname()[1])
