"""Connections with other nodes: the inter-node port, frames and calls, and how a cluster is founded. The packages that
send frames define their contents (`node.frame_kinds`), and `node.calls` the methods of calls."""

from penstock.node.peers.dispatcher import FrameDispatcher
from penstock.node.peers.founding import Adopt, Decision, Found, Founding, Join, Wait, cluster_id_of
from penstock.node.peers.handshake import PeerRefused
from penstock.node.peers.hello import PeerHello
from penstock.node.peers.keys import read_cluster_key
from penstock.node.peers.network import PeerNetwork
from penstock.node.peers.refusals import Refusals
from penstock.node.peers.rpc import CallProblem, PeerCallFailed, Rpc
from penstock.node.peers.transport import Body, Buffer, Transport, TransportEvents

__all__ = [
    "Adopt",
    "Body",
    "Buffer",
    "CallProblem",
    "Decision",
    "Found",
    "Founding",
    "FrameDispatcher",
    "Join",
    "PeerCallFailed",
    "PeerHello",
    "PeerNetwork",
    "PeerRefused",
    "Refusals",
    "Rpc",
    "Transport",
    "TransportEvents",
    "Wait",
    "cluster_id_of",
    "read_cluster_key",
]
