"""The source's options: those of Spark's Kafka connector, by the same names and with the same meaning, and our own.

Everything that can be known without asking a broker is checked here, so a wrong option fails where it is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.wire.settings import ClientSettings
from penstock.errors import ConfigError
from penstock.spark import kafka_settings
from penstock.spark.option_values import Reader, whole_number
from penstock.spark.payloads import PAYLOAD_OPTIONS, PayloadOptions
from penstock.spark.queue_options import QUEUE_ONLY, QueueOptions, queue_options
from penstock.spark.read_bounds import (
    EARLIEST,
    LATEST,
    Bound,
    Subscription,
    parse_assign,
    parse_offsets,
    parse_pattern,
    parse_topics,
)
from penstock.spark.security_options import security_of
from penstock.types import Isolation

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS_COLUMN: Final = "headers"

FETCH_BYTES: Final = 2 << 20
"""How much is fetched of one partition at a time. Measured: 1 to 2 MB decode quickest (they fit the CPU's cache), and
the next request is on its way meanwhile."""
MAX_FETCH_BYTES: Final = 128 << 20

POLL_TIMEOUT_MS: Final = 120_000
"""The connector's default (spark.network.timeout): how long a task waits for a partition that gives nothing."""

PLANNING_TRY_MS: Final = 5_000
"""How long one of fetchOffset.numRetries may take."""

DEAD_LETTER_SUFFIX: Final = ".dlq"

MAX_RETRY_MS: Final = 24 * 3_600_000
MAX_CLIENT_ID_CHARS: Final = 200
"""It is a label in logs and metrics, and brokers refuse very long ones."""

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000

GROUP_RETENTION_MS: Final = 3 * 24 * 3_600_000
"""A job that runs on working days keeps its group over the weekend."""
MAX_QUERY_NAME_CHARS: Final = 200
"""It becomes part of a group's name, which brokers store with every offset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The options of a reader, checked."""

    driver: ClientSettings
    executor: ClientSettings
    subscription: Subscription
    starting: Bound
    ending: Bound
    columns: tuple[str, ...]
    payload: PayloadOptions
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    group_id: str | None
    group_id_prefix: str
    query_name: str | None
    group_retention_ms: int
    """How long groups that the source has named are kept."""
    commit_progress: bool
    isolation: Isolation
    fetch_bytes: int
    max_wait_ms: int
    push_filters: bool
    bad_records: str
    dead_letter_topic: str | None
    queue: QueueOptions | None
    """Jobs of a queue instead of the records of topics."""

    @property
    def decodes_value(self) -> bool:
        return self.payload.value_format != "raw"

    @property
    def group_name(self) -> str | None:
        """The group's name as far as options say it; else the checkpoint has one."""
        if self.group_id or self.query_name is None:
            return self.group_id
        return f"{self.group_id_prefix}-{self.query_name}"

    @property
    def to_dead_letters(self) -> bool:
        return self.bad_records == "deadLetter"

    @property
    def bad_as_null(self) -> bool:
        return self.bad_records == "null"


def parse(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """ConfigError names the first option that cannot be meant."""
    reader = Reader(options)
    kafka = reader.prefixed("kafka.")
    kafka_settings.check(kafka)
    if reader.has("path"):  # from load("...")
        raise ConfigError("path", reader.text("path"), "no path: topics are named by subscribe")
    parsed = SourceOptions(
        driver=_client(kafka, retry_for_ms=_planning_ms(reader)),
        executor=_client(
            kafka, retry_for_ms=reader.number("kafkaConsumer.pollTimeoutMs", least=1) or POLL_TIMEOUT_MS
        ),
        subscription=_subscription(reader),
        starting=_starting(reader, streaming=streaming),
        ending=_ending(reader, streaming=streaming),
        columns=_columns(reader),
        payload=PayloadOptions.from_options(reader.given(PAYLOAD_OPTIONS)),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        max_offsets_per_trigger=reader.number("maxOffsetsPerTrigger", least=1),
        min_offsets_per_trigger=reader.number("minOffsetsPerTrigger", least=1),
        max_trigger_delay_ms=reader.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        min_partitions=reader.number("minPartitions", least=1),
        max_records_per_partition=reader.number("maxRecordsPerPartition", least=1),
        group_id=kafka.get("group.id"),
        group_id_prefix=reader.text("groupIdPrefix") or "spark-penstock-source",
        query_name=_query_name(reader),
        group_retention_ms=reader.duration_ms("groupRetention", GROUP_RETENTION_MS),
        commit_progress=reader.flag("commitProgress", True),
        isolation=kafka_settings.isolation_of(kafka),
        fetch_bytes=_fetch_bytes(kafka),
        max_wait_ms=whole_number(
            "kafka.fetch.max.wait.ms", kafka.get("fetch.max.wait.ms", "500"), most=60_000
        ),
        push_filters=reader.flag("pushFilters", False),
        bad_records=reader.choice("badRecords", ("fail", "deadLetter", "null"), "fail"),
        dead_letter_topic=_dead_letter_topic(reader),
        queue=_queue(reader, streaming=streaming),
    )
    reader.refuse_others()
    _check_together(parsed)
    return parsed


def _queue(reader: Reader, *, streaming: bool) -> QueueOptions | None:
    if not reader.has("queue"):
        for name in QUEUE_ONLY:
            if reader.has(name):
                raise ConfigError(name, reader.text(name), "queue with it")
        return None
    return queue_options(reader, streaming=streaming)


def _check_together(options: SourceOptions) -> None:
    _check_order(options.starting, options.ending)
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise ConfigError("minOffsetsPerTrigger", least, f"at most maxOffsetsPerTrigger, which is {most}")
    if options.dead_letter_topic and not options.to_dead_letters:
        raise ConfigError("deadLetterTopic", options.dead_letter_topic, "badRecords=deadLetter with it")
    if options.dead_letter_topic in options.subscription.topics:
        raise ConfigError(
            "deadLetterTopic", options.dead_letter_topic, "a topic that this query does not read"
        )


def _check_order(starting: Bound, ending: Bound) -> None:
    """A batch that ends before it begins would read nothing, and say nothing."""
    if starting.time_ms is not None and ending.time_ms is not None and ending.time_ms < starting.time_ms:
        raise ConfigError(
            ending.option, ending.time_ms, f"a time not before {starting.option}, which is {starting.time_ms}"
        )
    if starting.is_by_time != ending.is_by_time:
        return
    begins, ends = starting.named() or {}, ending.named() or {}
    for tp in sorted(set(begins) & set(ends)):
        if 0 <= ends[tp] < begins[tp]:
            raise ConfigError(
                ending.option,
                f"{tp}: {ends[tp]}",
                f"{begins[tp]} or more, since {starting.option} begins there",
            )


def _client(kafka: Mapping[str, str], *, retry_for_ms: int) -> ClientSettings:
    servers = kafka.get("bootstrap.servers", "")
    if not servers.strip():
        raise ConfigError("kafka.bootstrap.servers", servers, "the brokers' addresses: HOST:PORT,HOST:PORT")
    settings = ClientSettings(
        bootstrap_servers=servers,
        client_id=kafka.get("client.id", "penstock-spark")[:MAX_CLIENT_ID_CHARS],
        request_timeout_ms=whole_number(
            "kafka.request.timeout.ms", kafka.get("request.timeout.ms", "30000"), least=1, most=3_600_000
        ),
        retry_for_ms=min(retry_for_ms, MAX_RETRY_MS),  # more than that means "for ever"
        retry_backoff_ms=whole_number(
            "kafka.retry.backoff.ms", kafka.get("retry.backoff.ms", "100"), least=1, most=60_000
        ),
        security=security_of(kafka),
    )
    try:
        settings.validate()
    except ConfigError as problem:
        if problem.field == "bootstrap_servers":
            raise ConfigError("kafka.bootstrap.servers", servers, problem.expected) from None
        raise
    return settings


def _planning_ms(reader: Reader) -> int:
    tries = reader.number("fetchOffset.numRetries")
    interval = reader.number("fetchOffset.retryIntervalMs")
    return (3 if tries is None else tries) * max(PLANNING_TRY_MS, interval or 0)


def _subscription(reader: Reader) -> Subscription:
    topics, pattern, assign = (reader.text(name) for name in ("subscribe", "subscribePattern", "assign"))
    given = [name for name in ("subscribe", "subscribePattern", "assign") if reader.has(name)]
    if reader.has("queue") and not given:
        return Subscription(topics=())
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise ConfigError("subscribe", found, "exactly one of subscribe, subscribePattern and assign")
    if topics is not None:
        return Subscription(topics=parse_topics("subscribe", topics))
    if pattern is not None:
        return Subscription(pattern=parse_pattern("subscribePattern", pattern))
    return Subscription(partitions=parse_assign("assign", assign or ""))


def _query_name(reader: Reader) -> str | None:
    name = reader.text("queryName")
    if name is not None and not (0 < len(name) <= MAX_QUERY_NAME_CHARS and name.isprintable()):
        raise ConfigError(
            "queryName", name[:MAX_QUERY_NAME_CHARS], f"1 to {MAX_QUERY_NAME_CHARS} printable characters"
        )
    return name


def _starting(reader: Reader, *, streaming: bool) -> Bound:
    """A time wins over offsets, as in the connector."""
    strategy = reader.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    by_time = _by_time(reader, "starting", else_latest=strategy == "latest")
    default = "latest" if streaming else "earliest"
    option, text = "startingOffsets", reader.text("startingOffsets") or default
    if by_time is not None:
        return by_time
    if text.lower() == "latest":
        if not streaming:
            raise ConfigError(
                option, text, "earliest or offsets: a batch that starts at the end reads nothing"
            )
        return Bound(option=option, everywhere=LATEST)
    if text.lower() == "earliest":
        return Bound(option=option, everywhere=EARLIEST)
    offsets = parse_offsets(option, text, least=EARLIEST)
    if not streaming and LATEST in offsets.values():
        raise ConfigError(option, text, "no -1 (latest): a batch that starts at the end reads nothing")
    return Bound(option=option, by_partition=offsets)


def _ending(reader: Reader, *, streaming: bool) -> Bound:
    given = [
        name for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets") if reader.has(name)
    ]
    if streaming and given:
        raise ConfigError(given[0], reader.text(given[0]), "no end: a stream has none. Leave it out")
    by_time = _by_time(reader, "ending", else_latest=True)
    option, text = "endingOffsets", reader.text("endingOffsets") or "latest"
    if by_time is not None:
        return by_time
    if text.lower() == "latest":
        return Bound(option=option, everywhere=LATEST)
    if text.lower() == "earliest":
        raise ConfigError(option, text, "latest or offsets: a batch that ends at the start reads nothing")
    return Bound(option=option, by_partition=parse_offsets(option, text, least=LATEST))


def _by_time(reader: Reader, which: str, *, else_latest: bool) -> Bound | None:
    single, each = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    time, times = reader.number(single), reader.text(each)
    if time is not None:
        return Bound(option=single, time_ms=time, else_latest=else_latest)
    if times is not None:
        parsed = parse_offsets(each, times, least=0)
        return Bound(option=each, time_by_partition=parsed, else_latest=else_latest)
    return None


def _columns(reader: Reader) -> tuple[str, ...]:
    """All but the headers, unless `columns` picks some: what is not asked for costs nothing."""
    headers = reader.flag("includeHeaders", False)
    text = reader.text("columns")
    if text is None:
        return (*COLUMNS, HEADERS_COLUMN) if headers else COLUMNS
    by_name = {name.lower(): name for name in (*COLUMNS, HEADERS_COLUMN)}
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) != len(names) or not set(names) <= set(by_name):
        raise ConfigError("columns", text, f"some of {', '.join(by_name.values())}, each once")
    if headers and HEADERS_COLUMN not in names:
        names.append(HEADERS_COLUMN)
    return tuple(by_name[name] for name in names)


def _dead_letter_topic(reader: Reader) -> str | None:
    text = reader.text("deadLetterTopic")
    if text is None:
        return None
    names = parse_topics("deadLetterTopic", text)
    if len(names) != 1:
        raise ConfigError("deadLetterTopic", text, "one topic")
    return names[0]


def _fetch_bytes(kafka: Mapping[str, str]) -> int:
    """A partition's limit, the whole answer's, or ours: a task asks for one partition at a time."""
    for name in ("max.partition.fetch.bytes", "fetch.max.bytes"):
        if name in kafka:
            return min(whole_number(f"kafka.{name}", kafka[name], least=1), MAX_FETCH_BYTES)
    return FETCH_BYTES
