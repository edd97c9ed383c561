"""The sink's options: those of Spark's Kafka sink, by the same names and with the same meaning, and our own.

Everything that can be known without asking a broker is checked here, so a wrong option fails where it is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.wire.settings import (
    BATCH_BYTES,
    MAX_IN_FLIGHT,
    REQUEST_OVERHEAD_BYTES,
    ClientSettings,
)
from penstock.errors import ConfigError
from penstock.spark import sink_settings
from penstock.spark.option_values import Reader, whole_number
from penstock.spark.payloads import PAYLOAD_OPTIONS, PayloadOptions
from penstock.spark.read_bounds import parse_topics
from penstock.spark.security_options import security_of

CODECS: Final = {"none": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
EXACTLY_ONCE: Final = ("auto", "true", "false")
MAX_INT32: Final = 2**31 - 1
MAX_REQUEST_BYTES: Final = 100 << 20
"""The largest request that brokers accept (socket.request.max.bytes)."""
MAX_BUFFER_BYTES: Final = 1 << 30

ASYNC_PROGRESS: Final = "asyncProgressTrackingEnabled"
SPARKS_OWN: Final = (
    "checkpointLocation",
    "queryName",
    ASYNC_PROGRESS,
    "asyncProgressTrackingCheckpointIntervalMs",
    "asyncProgressTrackingOverrideSinkSupportCheck",
)
"""Options of a streaming query, which Spark reads and hands to us as well."""


RAW: Final = PayloadOptions()
"""Values as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of a writer, checked."""

    client: ClientSettings
    topic: str | None = None
    """The topic of every row, whatever the column `topic` says."""
    use_timestamps: bool = False
    """Whether the column `timestamp` is the records' time; Kafka's sink has no such thing and takes the present."""
    payload: PayloadOptions = RAW
    exactly_once: str = "auto"
    """One of EXACTLY_ONCE; auto: if the brokers can do it."""
    txn_app_id: str | None = None
    txn_version: int | None = None
    """A batch write with the same txnAppId and txnVersion is written once."""
    http_urls: tuple[str, ...] = ()
    """Instead of the HTTP ports that brokers announce."""
    transaction_timeout_ms: int = 600_000
    """How long attempts stay open after the last sign of life of their query. Longer than Kafka's minute: the
    coordinator hears little of a task that computes for long before its next rows."""
    compression: int = 0
    max_in_flight: int = MAX_IN_FLIGHT
    delivery_timeout_ms: int = 120_000
    max_request_bytes: int = 1 << 20
    batch_bytes: int = BATCH_BYTES
    buffer_bytes: int = 32 << 20

    @classmethod
    def from_options(cls, options: Mapping[str, str], *, overwrite: bool = False) -> "SinkOptions":
        """ConfigError names the first option that cannot be meant."""
        reader = Reader(options)
        kafka = reader.prefixed("kafka.")
        sink_settings.check(kafka)
        if overwrite:
            raise ConfigError(
                "mode", "overwrite", 'append: a topic cannot be overwritten. Write .mode("append")'
            )
        if reader.has("path"):
            raise ConfigError("path", reader.text("path"), "no path: the option topic says where rows go")
        reader.flag("includeHeaders", False)  # as in Kafka's sink, the column decides
        for name in SPARKS_OWN:
            reader.has(name)
        made = cls(
            client=_client(kafka),
            topic=_topic(reader),
            use_timestamps=reader.flag("useTimestamps", False),
            payload=PayloadOptions.from_options(reader.given(PAYLOAD_OPTIONS)),
            exactly_once=_exactly_once(reader),
            txn_app_id=reader.text("txnAppId"),
            txn_version=reader.number("txnVersion"),
            http_urls=tuple(filter(None, (reader.text("httpUrl") or "").replace(" ", "").split(","))),
            **_producer(kafka),
        )
        _check_transaction(made)
        reader.refuse_others()
        return made


def _exactly_once(reader: Reader) -> str:
    """With asynchronous progress tracking Spark does not store the offsets of every micro-batch. After a failure the
    same number may stand for other rows, which would be taken for a replay and left out."""
    wanted = reader.choice("exactlyOnce", EXACTLY_ONCE, "auto")
    if not reader.flag(ASYNC_PROGRESS, False):
        return wanted
    if wanted == "true":
        raise ConfigError(
            "exactlyOnce", wanted, f"auto or false with {ASYNC_PROGRESS}, which replays other rows"
        )
    return "false"


def _check_transaction(options: SinkOptions) -> None:
    app_id, version = options.txn_app_id, options.txn_version
    if (app_id is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise ConfigError(missing, None, "a value: txnAppId and txnVersion belong together")
    if app_id is not None and not app_id.strip():
        raise ConfigError("txnAppId", app_id, "a name for what is written, which stays the same")
    if app_id is not None and options.exactly_once == "false":
        raise ConfigError("exactlyOnce", "false", "true or nothing, because txnAppId asks for it")


def _topic(reader: Reader) -> str | None:
    topic = reader.text("topic")
    if topic is None:
        return None
    if not topic.strip() or "," in topic:
        raise ConfigError("topic", topic, "one topic's name, or no such option and a column topic")
    return parse_topics("topic", topic)[0]


def _client(kafka: Mapping[str, str]) -> ClientSettings:
    servers = kafka.get("bootstrap.servers", "")
    if not servers.strip():
        raise ConfigError("kafka.bootstrap.servers", servers, "the brokers' addresses: HOST:PORT,HOST:PORT")
    settings = ClientSettings(
        bootstrap_servers=servers,
        client_id=kafka.get("client.id", "penstock-spark"),
        request_timeout_ms=_number(kafka, "request.timeout.ms", 30_000),
        retry_for_ms=_number(kafka, "max.block.ms", 60_000, least=0),
        retry_backoff_ms=max(1, _number(kafka, "retry.backoff.ms", 100, least=0)),
        security=security_of(kafka),
    )
    try:
        settings.validate()
    except ConfigError as problem:
        if problem.field == "bootstrap_servers":
            raise ConfigError("kafka.bootstrap.servers", servers, problem.expected) from None
        raise
    return settings


def _producer(kafka: Mapping[str, str]) -> dict[str, int]:
    codec = kafka.get("compression.type", "none")
    if codec.lower() not in CODECS:
        raise ConfigError("kafka.compression.type", codec, f"one of {', '.join(CODECS)}")
    return {
        "compression": CODECS[codec.lower()],
        # More in flight could break the order. Kafka's producer refuses such a value; clipping it does no harm.
        "max_in_flight": min(
            _number(kafka, "max.in.flight.requests.per.connection", MAX_IN_FLIGHT), MAX_IN_FLIGHT
        ),
        "delivery_timeout_ms": _number(kafka, "delivery.timeout.ms", 120_000),
        "max_request_bytes": _number(
            kafka, "max.request.size", 1 << 20, least=2 * REQUEST_OVERHEAD_BYTES, most=MAX_REQUEST_BYTES
        ),
        "batch_bytes": max(1, _number(kafka, "batch.size", BATCH_BYTES, least=0)),
        "transaction_timeout_ms": _number(kafka, "transaction.timeout.ms", 600_000),
        "buffer_bytes": _number(kafka, "buffer.memory", 32 << 20, most=MAX_BUFFER_BYTES),
    }


def _number(
    kafka: Mapping[str, str], name: str, default: int, *, least: int = 1, most: int = MAX_INT32
) -> int:
    """A whole number; one beyond `most` counts as that, since Kafka's client takes any (Long.MAX_VALUE for "ever")."""
    return min(most, whole_number(f"kafka.{name}", kafka.get(name, str(default)), least=least))
