"""Other nodes: the inter-node port, who is connected, frames and calls between nodes, and how a cluster begins. What
the frames mean is the business of those who send them."""

from penstock.node.peers.founding import Adopt, Decision, Found, Founding, Join, Wait, cluster_id_of
from penstock.node.peers.handshake import Refused
from penstock.node.peers.hello import PeerHello
from penstock.node.peers.keys import read_cluster_key
from penstock.node.peers.network import PeerNetwork
from penstock.node.peers.refusals import Refusals
from penstock.node.peers.rpc import FIRST_KIND_AFTER_RPC, CallFailed, CallProblem, Rpc
from penstock.node.peers.switchboard import Switchboard
from penstock.node.peers.transport import Body, Buffer, Transport, TransportEvents

__all__ = [
    "FIRST_KIND_AFTER_RPC",
    "Adopt",
    "Body",
    "Buffer",
    "CallFailed",
    "CallProblem",
    "Decision",
    "Found",
    "Founding",
    "Join",
    "PeerHello",
    "PeerNetwork",
    "Refusals",
    "Refused",
    "Rpc",
    "Switchboard",
    "Transport",
    "TransportEvents",
    "Wait",
    "cluster_id_of",
    "read_cluster_key",
]
