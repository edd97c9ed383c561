"""Clients: one for people, one for Spark. A client, and no broker.

    with Client("127.0.0.1:9092") as client:                  publish, queues, subscriptions, workers: docs/client.md
        client.publish("orders", b"...")
        for job in client.queue("orders", group="workers"):
            with job: ...

`Client` is in sync.py, `AsyncClient` in aio. Their sessions with a broker (session.py, work_session.py,
feed_session.py) decide without a socket; threads.py and aio/driver.py do what they say.

    with Cluster(ClientSettings(bootstrap_servers="127.0.0.1:9092")) as cluster:      a lean one, for whole batches
        place = TopicPartition("orders", 0)
        found = cluster.offsets({place: LATEST})[place]
        for chunk in fetch_range(cluster, place, 0, found.offset):
            ...

settings.py says what can be set, connection.py talks to one broker, pool.py keeps the connections, cluster.py knows
who leads what, fetch.py reads ranges. remedies.py is the table of what is worth another try, retry.py the waiting.

The lean one runs on Spark's executors, which must not pay for librdkafka, WebSockets or an event loop: what is for
people is loaded when it is asked for by name.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.client.cluster import Cluster, Topic
from penstock.client.connection import Connection
from penstock.client.errors import (
    ClientError,
    Closed,
    Denied,
    Garbled,
    LeaseLost,
    PublishFailed,
    Refused,
    Unreachable,
)
from penstock.client.fetch import OffsetGone, fetch_range
from penstock.client.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset
from penstock.client.settings import ClientSettings

if TYPE_CHECKING:
    from penstock.client.admin import Admin, GroupInfo, QueueInfo, QueuePartitionInfo, TopicInfo
    from penstock.client.aio import AsyncClient, AsyncJob, AsyncMessage, AsyncQueue, AsyncSubscription
    from penstock.client.aio.admin import AsyncAdmin
    from penstock.client.dead_letters import DeadLetter
    from penstock.client.publishing import Stored
    from penstock.client.streams import Job, Message, Queue, Subscription
    from penstock.client.sync import Client
    from penstock.client.threads import Settlement
    from penstock.client.worker_policy import Reject, Retry

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncJob",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncSubscription",
    "Client",
    "ClientError",
    "ClientSettings",
    "Closed",
    "Cluster",
    "Connection",
    "DeadLetter",
    "Denied",
    "FoundOffset",
    "Garbled",
    "GroupInfo",
    "Job",
    "LeaseLost",
    "Message",
    "OffsetGone",
    "PublishFailed",
    "Queue",
    "QueueInfo",
    "QueuePartitionInfo",
    "Refused",
    "Reject",
    "Retry",
    "Settlement",
    "Stored",
    "Subscription",
    "Topic",
    "TopicInfo",
    "Unreachable",
    "fetch_range",
]

_ON_DEMAND = {
    "Admin": "admin",
    "AsyncAdmin": "aio.admin",
    "AsyncClient": "aio",
    "AsyncJob": "aio",
    "AsyncMessage": "aio",
    "AsyncQueue": "aio",
    "AsyncSubscription": "aio",
    "Client": "sync",
    "DeadLetter": "dead_letters",
    "GroupInfo": "admin",
    "Job": "streams",
    "Message": "streams",
    "Queue": "streams",
    "QueueInfo": "admin",
    "QueuePartitionInfo": "admin",
    "Reject": "worker_policy",
    "Retry": "worker_policy",
    "Settlement": "threads",
    "Stored": "publishing",
    "Subscription": "streams",
    "TopicInfo": "admin",
}


def __getattr__(name: str) -> object:
    module = _ON_DEMAND.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"penstock.client.{module}"), name)
