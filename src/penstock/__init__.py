"""Penstock: an event streaming broker and work queue that speaks Kafka's protocol."""

from typing import TYPE_CHECKING

from penstock.version import VERSION as __version__

if TYPE_CHECKING:
    from penstock.embedded import Broker

__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> object:
    # The CLI and clients import `penstock.*` without wanting a broker; only who asks for one pays for it.
    if name == "Broker":
        from penstock.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
