"""The asyncio client: `AsyncClient` and its types. No other part of `penstock.client` uses an event loop.

Names are loaded when they are first used: `penstock.clique` needs `aio.threads` without librdkafka and WebSockets.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.aio.admin import AsyncAdmin
    from penstock.client.aio.client import AsyncClient
    from penstock.client.aio.streams import AsyncJob, AsyncMessage, AsyncQueue, AsyncSubscription
    from penstock.client.aio.transactions import AsyncTransaction

__all__ = [
    "AsyncAdmin",
    "AsyncClient",
    "AsyncJob",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncSubscription",
    "AsyncTransaction",
]

_MODULES = {
    "admin": ("AsyncAdmin",),
    "client": ("AsyncClient",),
    "streams": ("AsyncJob", "AsyncMessage", "AsyncQueue", "AsyncSubscription"),
    "transactions": ("AsyncTransaction",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"penstock.client.aio.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
