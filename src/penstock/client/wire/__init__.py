"""A lean blocking client for whole record batches, which the Spark source and sink are built on.

    with Cluster(ClientSettings(bootstrap_servers="127.0.0.1:9092")) as cluster:
        partition = TopicPartition("orders", 0)
        end = cluster.offsets({partition: LATEST})[partition].offset
        for chunk in fetch_range(cluster, partition, 0, end):
            ...

settings.py has the settings, connection.py talks to one broker, connection_pool.py keeps the connections, cluster.py
tracks leaders, coordinators.py finds coordinators, fetch.py reads ranges of offsets, producer.py writes batches,
transactions.py has the requests of operators about transactions, retry.py waits between tries. Errors and the table of
retriable error codes are shared with the rest of `penstock.client`; nothing else of it is imported here.

Names are imported when they are first used: a process that only checks options loads no codec and no socket.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.wire.cluster import Cluster, Topic
    from penstock.client.wire.connection import Connection
    from penstock.client.wire.fetch import OffsetGone, fetch_range
    from penstock.client.wire.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset
    from penstock.client.wire.settings import ClientSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "ClientSettings",
    "Cluster",
    "Connection",
    "FoundOffset",
    "OffsetGone",
    "Topic",
    "fetch_range",
]

_MODULES = {
    "cluster": ("Cluster", "Topic"),
    "connection": ("Connection",),
    "fetch": ("OffsetGone", "fetch_range"),
    "list_offsets": ("EARLIEST", "LATEST", "MAX_TIMESTAMP", "FoundOffset"),
    "settings": ("ClientSettings",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"penstock.client.wire.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
