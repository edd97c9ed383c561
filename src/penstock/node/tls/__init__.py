"""TLS on the ports of a node: contexts that follow their files, connections, and the limits on handshakes.

Loaded only by nodes that have TLS.
"""

from penstock.node.tls.contexts import TlsFiles, inter_node_files
from penstock.node.tls.port import Hint, TlsPort, check_client_port, client_port
from penstock.node.tls.transport import TlsTransport

__all__ = [
    "Hint",
    "TlsFiles",
    "TlsPort",
    "TlsTransport",
    "check_client_port",
    "client_port",
    "inter_node_files",
]
