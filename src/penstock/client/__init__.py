"""A lean, blocking Kafka client: sockets, the wire codec and record batches, and no broker.

    with Cluster(ClientSettings(bootstrap_servers="127.0.0.1:9092")) as cluster:
        place = TopicPartition("orders", 0)
        found = cluster.offsets({place: LATEST})[place]
        for chunk in fetch_range(cluster, place, 0, found.offset):
            ...

settings.py says what can be set, connection.py talks to one broker, pool.py keeps the connections, cluster.py knows
who leads what, fetch.py reads ranges. remedies.py is the table of what is worth another try, retry.py the waiting.
"""

from penstock.client.cluster import Cluster, Topic
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Garbled, Refused, Unreachable
from penstock.client.fetch import OffsetGone, fetch_range
from penstock.client.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset
from penstock.client.settings import ClientSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "Connection",
    "FoundOffset",
    "Garbled",
    "OffsetGone",
    "Refused",
    "Topic",
    "Unreachable",
    "fetch_range",
]
