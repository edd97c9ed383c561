"""How a node finds its cluster, stays registered in it, and leaves.

    empty folder   the node dials the seeds until they agree to found a cluster, or one of them has a cluster to join
    later starts   the folder names the cluster; the seeds are only the first addresses to try
    registered     the controller knows the node's id, incarnation and addresses, and the metadata tells all nodes
    refused        a node that is not admitted logs why and retries; it stops if that is hopeless (`peers/refusals.py`)

This node's announcements about itself (the hello, gossip's metadata) change once, when it has found its cluster.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from penstock.cluster import Endpoint, NodeInfo, NodeRegistered
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, KafkaError, NotAdmitted, PenstockError
from penstock.log import DataFolder
from penstock.node import frame_kinds
from penstock.node.membership.gossip import Gossip
from penstock.node.membership.network import Network
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.peers import Founding, FrameDispatcher, PeerHello, PeerRefused, Refusals, Wait
from penstock.swim import GossipEndpoint
from penstock.types import NodeId, Replica

log = logging.getLogger("penstock.node")

CHECK_SECONDS = 1.0
TELL_SECONDS = 5.0
"""How often a node that waits for others logs that."""


class Membership:
    """This node's membership in its cluster."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        hello: PeerHello,
        folder: DataFolder,
        events: FrameDispatcher,
        network: Network,
        gossip: Gossip,
    ) -> None:
        self._config = config
        self._hello = hello
        self._folder = folder
        self._network = network
        self._gossip = gossip
        self._founding = Founding(hello) if hello.cluster_id is None else None
        self._refusals = Refusals(silence_ms=config.replication.peer_silence_ms)
        self._heard = asyncio.Event()
        self._is_registered = asyncio.Event()
        self._registered: set[Replica] = set()
        self._registering: asyncio.Task[None] | None = None
        events.watch(up=self._on_up, hello=self._on_hello, down=self._on_down, refused=self._on_refused)
        events.take(frame_kinds.GOSSIP, lambda sender, body: gossip.receive_reliable(sender, bytes(body)))

    # --- finding the cluster

    async def find(self) -> None:
        """Returns when the folder names its cluster; NotAdmitted if that cannot happen."""
        self._network.dial_seeds(self._config.seeds)
        self._gossip.join(GossipEndpoint(seed.host, seed.port) for seed in self._config.seeds)
        if self._founding is None:
            return
        decision = self._founding.decide()
        told, told_at = "", 0.0
        while isinstance(decision, Wait):
            now = asyncio.get_running_loop().time()
            if now - told_at >= TELL_SECONDS or decision.reason != told:
                told, told_at = decision.reason, now
                log.info("no cluster yet: %s", decision.reason)
            self._check_hope()
            self._heard.clear()
            await _within(TELL_SECONDS, self._heard.wait())
            decision = self._founding.decide()
        self._founding = None
        self._folder.found(decision.cluster_id, decision.founders)
        log.info("cluster %s: %s", decision.cluster_id, type(decision).__name__.lower())
        self._hello = replace(self._hello, cluster_id=decision.cluster_id, founders=decision.founders)
        self._network.introduce(self._hello)
        self._gossip.set_meta(replace(self._gossip.meta, cluster_id=decision.cluster_id))

    def _check_hope(self) -> None:
        seeds = [seed for seed in self._config.seeds if seed != self._hello.cluster]
        final = self._refusals.final(asyncio.get_running_loop().time(), seeds)
        if final is not None:
            raise NotAdmitted(final.reason, final.hint)

    def _on_up(self, node: NodeId) -> None:
        self._refusals.let_in()

    def _on_refused(self, address: Address, refused: PeerRefused) -> None:
        self._refusals.heard(asyncio.get_running_loop().time(), address, refused)
        if self._founding is not None:
            self._founding.refused(address, str(refused))
            self._heard.set()

    def _on_hello(self, hello: PeerHello, dialled: Address | None) -> None:
        if self._founding is not None:
            self._founding.heard(hello, dialled)
            self._heard.set()

    def _on_down(self, node: NodeId) -> None:
        if self._founding is not None:
            self._founding.lost(node)
            self._heard.set()

    # --- staying in it

    def seen(self) -> dict[int, int]:
        """Nodes that gossip sees or that are connected, with their incarnations; this one is among them.

        A connection is the better evidence: it ends after `peer_silence_ms`, long before a node is fenced, and of two
        processes with one id it has decided which one is the node.
        """
        seen = {
            int(replica.node): replica.incarnation
            for replica, member in self._gossip.members().items()
            if member.state.is_present
        }
        connected = self._network.connected().values()
        return seen | {int(hello.node): hello.incarnation for hello in connected}

    def register(self, controller: Controller, metadata: MetadataLog, done: Callable[[], None]) -> None:
        """Keeps this node registered; calls `done` when the metadata shows it for the first time."""
        self._registering = asyncio.get_running_loop().create_task(
            self._stay_registered(controller, metadata, done)
        )

    async def admitted(self) -> None:
        """Returns when the cluster has registered this node; NotAdmitted if it never will. To be called after
        `register`."""
        while not self._is_registered.is_set():
            self._check_hope()
            await _within(CHECK_SECONDS, self._is_registered.wait())

    async def _stay_registered(
        self, controller: Controller, metadata: MetadataLog, done: Callable[[], None]
    ) -> None:
        registration = _registration(self._hello)
        was_registered = False
        while True:
            known = metadata.state.nodes.get(registration.node_id)
            if _is_admitted(known, registration) and not was_registered:
                was_registered = True
                self._is_registered.set()
                done()
            if known is None and was_registered:
                # An operator or the controller decided that: registering again would undo it.
                log.warning("this node was removed from the cluster: stop it (started again, it joins again)")
                return
            if known is None or known.as_record() != registration:
                await self._register(controller, metadata, registration)
            await _within(CHECK_SECONDS, metadata.next_change())

    async def _register(
        self, controller: Controller, metadata: MetadataLog, registration: NodeRegistered
    ) -> None:
        try:
            await controller.register(registration)
        except KafkaError as refused:
            if refused.code == ErrorCode.NOT_CONTROLLER:
                word = self._refusals.word(asyncio.get_running_loop().time())
                here = self._voters_here(metadata)
                log.info("waiting for a majority of the cluster's voters, %s: %s", here, word or refused)
            else:
                log.error("this node could not be registered: %s", refused)
        except PenstockError as trouble:
            log.info("this node could not be registered, next attempt soon: %s", trouble)

    def _voters_here(self, metadata: MetadataLog) -> str:
        config = metadata.partition.replica.group_config
        voters = self._hello.founders if config is None else config.voters
        here = {self._hello.replica, *(hello.replica for hello in self._network.connected().values())}
        return f"of {len(voters)} there are {sum(voter in here for voter in voters)} here"

    def follow_nodes(self, metadata: MetadataLog) -> None:
        """Takes over the addresses of the other nodes from the metadata, and forgets nodes that were removed."""
        nodes = metadata.state.nodes.values()
        registered = {node.replica for node in nodes}
        for gone in sorted(self._registered - registered):
            self._gossip.forget(gone)
        self._registered = registered
        self._network.set_peers(
            {NodeId(node.node_id): Address(node.cluster.host, node.cluster.port) for node in nodes}
        )

    async def stop(self) -> None:
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])


async def _within(seconds: float, event: Awaitable[object]) -> None:
    """Waits for the event, at most this long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event


def _registration(hello: PeerHello) -> NodeRegistered:
    return NodeRegistered(
        node_id=hello.node,
        incarnation=hello.incarnation,
        kafka=Endpoint(hello.kafka.host, hello.kafka.port),
        cluster=Endpoint(hello.cluster.host, hello.cluster.port),
        http=None if hello.http is None else Endpoint(hello.http.host, hello.http.port),
        rack=hello.rack,
        version=hello.version,
        listeners={name: Endpoint(one.host, one.port) for name, one in hello.listeners.items()},
        https=hello.https,
        machine=hello.machine,
    )


def _is_admitted(known: NodeInfo | None, registration: NodeRegistered) -> bool:
    """Whether the metadata has this node, at least as a controller of the version before records it: that one knows
    nothing of listeners, https and machines. It may be the controller for hours while nodes are updated one after the
    other."""
    if known is None:
        return False
    recorded = replace(
        known.as_record(),
        listeners=registration.listeners,
        https=registration.https,
        machine=registration.machine,
    )
    return recorded == registration
