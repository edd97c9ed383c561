"""The asyncio client: `AsyncClient` and its types. No other part of `penstock.client` uses an event loop."""

from penstock.client.aio.admin import AsyncAdmin
from penstock.client.aio.client import AsyncClient
from penstock.client.aio.streams import AsyncJob, AsyncMessage, AsyncQueue, AsyncSubscription

__all__ = ["AsyncAdmin", "AsyncClient", "AsyncJob", "AsyncMessage", "AsyncQueue", "AsyncSubscription"]
