"""How each `kafka.*` option is treated: used, ignored, or refused with a reason.

Spark's Kafka connector hands these to Kafka's Java client. A job that moves to Penstock keeps them, so every name that
the Java consumer knows is known here. An unknown name is refused, since a typo in a setting that matters
(`kafka.max.parition.fetch.bytes`) would otherwise be found out in production.
"""

from collections.abc import Mapping
from typing import Final

from penstock.errors import ConfigError
from penstock.spark.setting_table import SettingTable
from penstock.types import Isolation

HONOURED: Final = frozenset(
    [
        "bootstrap.servers",
        "client.id",
        "group.id",
        "request.timeout.ms",
        "retry.backoff.ms",
        "fetch.max.wait.ms",
        "fetch.max.bytes",
        "max.partition.fetch.bytes",
        "isolation.level",
    ]
)
"""Read by options.py."""

WITHOUT_EFFECT: Final = frozenset(
    [
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.leave.group.on.close",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ]
)
"""Settings of Kafka's own consumer, which is not used here: they have nothing to tune."""

_OURS: Final = "Spark decides this, not the consumer; leave it out"

REFUSED: Final = {
    "auto.offset.reset": "the option startingOffsets instead",
    "key.deserializer": "binary keys; leave it out and cast in the query",
    "value.deserializer": "binary values; leave it out and cast, or use valueFormat",
    "enable.auto.commit": _OURS,
    "interceptor.classes": "no interceptors: there is no JVM client here. Leave it out",
}
TABLE: Final = SettingTable(
    client="Kafka's consumer", honoured=HONOURED, without_effect=WITHOUT_EFFECT, refused=REFUSED
)


def check(settings: Mapping[str, str]) -> None:
    """ConfigError for the first setting (names without `kafka.`) that cannot be meant."""
    TABLE.check(settings)


def isolation_of(settings: Mapping[str, str]) -> Isolation:
    """Whether the query sees records of open and aborted transactions. By default it does, as in Kafka."""
    level = settings.get("isolation.level", "read_uncommitted")
    levels = {one.name.lower(): one for one in Isolation}
    if level not in levels:
        raise ConfigError("kafka.isolation.level", level, " or ".join(levels))
    return levels[level]
