"""Host and port of a listener."""

import msgspec

from penstock.errors import ConfigError

UNREACHABLE_HOSTS = ("0.0.0.0", "::", "")
"""A listener on one of them listens on every interface; a client cannot connect to them."""


class Address(msgspec.Struct, frozen=True):
    """A host and a port. Port 0 asks the system for a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, origin: str, text: object) -> "Address":
        """`HOST:PORT`, with an IPv6 host in brackets."""
        host, colon, port = str(text).rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ConfigError(origin, text, "HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Names other than localhost are not looked up: no loopback."""
        from ipaddress import ip_address  # most processes never ask, and it costs start time

        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
