"""Hosts in access rules: `*`, an address, or a network as CIDR (KIP-1276).

    *               every host
    10.1.2.3        this address; `::1` and `0:0:0:0:0:0:0:1` are the same one
    10.1.0.0/16     every address of the network; bits behind the prefix are ignored, as in Kafka

Names of hosts are refused: Kafka takes them, but they never match, and a DENY that never matches is a trap.
A client that comes over IPv6 from `::ffff:10.1.2.3` is the host 10.1.2.3, and a rule for `::ffff:10.1.2.3` or
`::ffff:10.1.0.0/112` is one for 10.1.2.3 or 10.1.0.0/16: a DENY that is written like this must match, too. A host that
is no address (an embedded broker's own client has none) matches `*` only.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from penstock.errors import ErrorCode, KafkaError

ANY_HOST = "*"

MAX_HOST_CHARACTERS = 64
"""The longest IPv6 address with a prefix length has 43 characters."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAPPED_PREFIX = 96
"""Bits before the IPv4 address in `::ffff:10.1.2.3`."""
_REMEMBERED_ADDRESSES = 4_096
"""Parsing takes 2 µs; a node sees the same clients again and again."""


def parse_network(host: str) -> Network | None:
    """The addresses that a rule's host matches; None for all. KafkaError if it is neither an address nor a network."""
    if host == ANY_HOST:
        return None
    try:
        if len(host) <= MAX_HOST_CHARACTERS and "%" not in host:
            return _without_mapping(ip_network(host, strict=False))
    except ValueError:
        pass
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"host {host[:MAX_HOST_CHARACTERS]!r}: expected *, an address (10.1.2.3), or a network (10.1.0.0/16)",
    )


def _without_mapping(network: Network) -> Network:
    """The IPv4 network of an IPv6 one that maps it."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_PREFIX:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_PREFIX))


@lru_cache(_REMEMBERED_ADDRESSES)
def parse_address(host: str) -> Address | None:
    """A client's address; None if its host is not one."""
    if len(host) > MAX_HOST_CHARACTERS:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
