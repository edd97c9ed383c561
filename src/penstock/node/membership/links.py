"""The connections of a node with its peers: frames, calls, gossip, membership. A node without a cluster has none of
it."""

from collections.abc import Callable
from random import Random

from penstock.config import Address, NodeConfig
from penstock.log import DataFolder
from penstock.log.disk import Disk
from penstock.node import frame_kinds
from penstock.node.membership.datagrams import DatagramNetwork
from penstock.node.membership.gossip import Gossip
from penstock.node.membership.membership import Membership
from penstock.node.membership.network import MakeNetwork
from penstock.node.parts import Part
from penstock.node.peers import FrameDispatcher, PeerHello, Rpc
from penstock.node.scheduling.clock import Clock
from penstock.swim import GossipEndpoint, Member, MemberMeta, Session, State, SwimSettings
from penstock.types import NodeId
from penstock.version import VERSION

LEAVE_SECONDS = 1.0


class Links(Part):
    """Made for one node, on its event loop. `bind` is the address of gossip; the network brings its own socket."""

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        disk: Disk,
        clock: Clock,
        *,
        make_network: MakeNetwork,
        datagrams: DatagramNetwork,
        bind: Address,
        key: bytes | None,
        random: Random,
    ) -> None:
        advertised = config.cluster_advertised
        assert advertised is not None
        cluster_id = folder.cluster_id or None
        self._bind = GossipEndpoint(bind.host, bind.port)
        self.gossip = Gossip(
            meta=MemberMeta(
                node=NodeId(config.node_id),
                folder_incarnation=folder.incarnation,
                cluster_id=cluster_id or "",
                cluster=GossipEndpoint(advertised.host, advertised.port),
                kafka=GossipEndpoint(config.advertised.host, config.advertised.port),
                http=None if config.http is None else GossipEndpoint(config.http.host, config.http.port),
                rack=config.rack_name or "",
                version=VERSION,
            ),
            settings=SwimSettings(),
            key=key,
            disk=disk,
            clock=clock,
            network=datagrams,
            reliable=self._reliable,
            on_change=self._member_changed,
            chance=random,
        )
        hello = PeerHello(
            node=NodeId(config.node_id),
            incarnation=folder.incarnation,
            run=random.getrandbits(62),
            gossip_epoch=self.gossip.epoch,
            cluster_id=cluster_id,
            founders=tuple(folder.founders),
            cluster=advertised,
            kafka=config.advertised,
            http=config.http,
            rack=config.rack_name,
            machine=config.machine,
            seeds=config.seeds,
            version=VERSION,
            listeners={one.name: one.advertised for one in config.listeners},
            https=config.http_encryption is not None,
            decrypts_gossip=True,
        )
        self.events = FrameDispatcher()
        self.network = make_network(hello, self.events)
        self.rpc = Rpc(self.network, self.events, max_calls_per_peer=config.limits.max_peer_calls)
        self.membership = Membership(
            config=config,
            hello=hello,
            folder=folder,
            events=self.events,
            network=self.network,
            gossip=self.gossip,
        )

    def seen(self) -> dict[int, int]:
        """Nodes that seem to be alive, with their incarnations."""
        return self.membership.seen()

    async def start(self) -> None:
        self.events.watch(up=self._peer_up, down=self.gossip.peer_down)
        await self.network.start()
        await self.gossip.start(self._bind)
        for node in self.network.connected():  # nodes that connected while gossip's socket was being opened
            self._peer_up(node)

    async def stop(self) -> None:
        await self.gossip.leave(LEAVE_SECONDS)
        self.gossip.stop()
        self.rpc.stop()
        await self.network.stop()

    def _peer_up(self, node: NodeId) -> None:
        hello = self.network.connected()[node]
        session = Session(hello.replica, hello.gossip_epoch) if hello.gossip_epoch else None
        self.gossip.peer_up(node, session, decrypts=hello.decrypts_gossip)

    def _reliable(self, to: NodeId | GossipEndpoint, data: bytes) -> bool:
        """Sends gossip packets over a connection; needs a node id, since an address alone has no connection."""
        return isinstance(to, int) and self.network.send(NodeId(to), frame_kinds.GOSSIP, data)

    def _member_changed(self, member: Member, state: State) -> None:
        """Nothing to do: periodic decisions read `seen`."""


MakeLinks = Callable[[NodeConfig, DataFolder, Disk, Clock], Links]
