"""The Python clients: publish, consume from queues, subscribe, run workers, administer. They never load the broker.

    with Client("127.0.0.1:9092") as client:                  docs/client.md shows it in use
        client.publish("orders", b"...")
        for job in client.queue("workers", topic="orders"):
            with job: ...

`Client` is in sync.py, `AsyncClient` in aio. Their sessions with a broker (session.py, queue_session.py,
subscription_session.py) decide without a socket; thread_driver.py and aio/driver.py do the network I/O.

`penstock.client.wire` is another client, for whole record batches. Spark's executors import it, and must not load
librdkafka, WebSockets or an event loop for it: so this package imports only its errors at once, and everything else
when a name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.client.errors import (
    CallFailed,
    ClientError,
    Closed,
    Denied,
    Garbled,
    LeaseLost,
    LoginFailed,
    ProducerFenced,
    PublishFailed,
    Refused,
    TlsFailed,
    TransactionFailed,
    Unreachable,
)

if TYPE_CHECKING:
    from penstock.client.admin import (
        Admin,
        GroupInfo,
        QueueConsumerInfo,
        QueueInfo,
        QueuePartitionInfo,
        TopicInfo,
    )
    from penstock.client.aio import (
        AsyncClient,
        AsyncJob,
        AsyncMessage,
        AsyncQueue,
        AsyncSubscription,
        AsyncTransaction,
    )
    from penstock.client.aio.admin import AsyncAdmin
    from penstock.client.calls import Reply
    from penstock.client.dead_letters import DeadLetter
    from penstock.client.publishing import Stored
    from penstock.client.queue_settings import QueueSettings
    from penstock.client.retry_policy import Reject, Retry
    from penstock.client.streams import Job, Message, Queue, Subscription
    from penstock.client.sync import Client
    from penstock.client.thread_driver import Settlement
    from penstock.client.transactions import Transaction

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncJob",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncSubscription",
    "AsyncTransaction",
    "CallFailed",
    "Client",
    "ClientError",
    "Closed",
    "DeadLetter",
    "Denied",
    "Garbled",
    "GroupInfo",
    "Job",
    "LeaseLost",
    "LoginFailed",
    "Message",
    "ProducerFenced",
    "PublishFailed",
    "Queue",
    "QueueConsumerInfo",
    "QueueInfo",
    "QueuePartitionInfo",
    "QueueSettings",
    "Refused",
    "Reject",
    "Reply",
    "Retry",
    "Settlement",
    "Stored",
    "Subscription",
    "TlsFailed",
    "TopicInfo",
    "Transaction",
    "TransactionFailed",
    "Unreachable",
]

_MODULES = {
    "admin": ("Admin", "GroupInfo", "QueueConsumerInfo", "QueueInfo", "QueuePartitionInfo", "TopicInfo"),
    "aio": (
        "AsyncAdmin",
        "AsyncClient",
        "AsyncJob",
        "AsyncMessage",
        "AsyncQueue",
        "AsyncSubscription",
        "AsyncTransaction",
    ),
    "calls": ("Reply",),
    "dead_letters": ("DeadLetter",),
    "publishing": ("Stored",),
    "queue_settings": ("QueueSettings",),
    "retry_policy": ("Reject", "Retry"),
    "streams": ("Job", "Message", "Queue", "Subscription"),
    "sync": ("Client",),
    "thread_driver": ("Settlement",),
    "transactions": ("Transaction",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"penstock.client.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
