"""How each `kafka.*` option of a writer is treated: used, ignored, or refused with a reason.

The counterpart of kafka_settings.py, for the names that Kafka's Java producer knows.
"""

from collections.abc import Mapping
from typing import Final

from penstock.spark.setting_table import SettingTable

HONOURED: Final = frozenset(
    [
        "bootstrap.servers",
        "client.id",
        "request.timeout.ms",
        "retry.backoff.ms",
        "max.block.ms",
        "delivery.timeout.ms",
        "max.request.size",
        "batch.size",
        "buffer.memory",
        "compression.type",
        "max.in.flight.requests.per.connection",
        "transaction.timeout.ms",
    ]
)
"""Read by sink_options.py."""

WITHOUT_EFFECT: Final = frozenset(
    [
        "acks",
        "client.dns.lookup",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "enable.idempotence",
        "enable.metrics.push",
        "linger.ms",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ]
)
"""Settings of machinery that is not here, and `acks`, `retries` and `enable.idempotence`: every write waits for all
replicas, is repeated until delivery.timeout.ms, and is never doubled by that, whatever these say."""

_OWN_TRANSACTIONS: Final = (
    "no such setting: the sink makes transactions by itself (exactlyOnce). Leave it out"
)
_NO_JVM: Final = "no class names: there is no JVM client here. Leave it out"

REFUSED: Final = {
    "key.serializer": "keys as string or binary; leave it out and cast in the query",
    "value.serializer": "values as string or binary; leave it out and cast, or use valueFormat",
    "partitioner.class": "no class: rows go by their key, or by the column partition. Leave it out",
    "partitioner.ignore.keys": "rows that go by their key; leave it out, or drop the key or set the column partition",
    "interceptor.classes": _NO_JVM,
    "transactional.id": _OWN_TRANSACTIONS,
    "transaction.two.phase.commit.enable": _OWN_TRANSACTIONS,
}
TABLE: Final = SettingTable(
    client="Kafka's producer", honoured=HONOURED, without_effect=WITHOUT_EFFECT, refused=REFUSED
)


def check(settings: Mapping[str, str]) -> None:
    """ConfigError for the first setting (names without `kafka.`) that cannot be meant."""
    TABLE.check(settings)
