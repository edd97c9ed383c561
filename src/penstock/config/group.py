"""Group configs: the settings of a queue (a share group) or of a consumer group, by the names that Kafka's tools use.

They are cluster metadata under the group's name (config resource type 32, GROUP), and may be set before the group
exists. `share.*` are Kafka's, with wider ranges where there is no reason for Kafka's; `penstock.*` are ours.
`ShareGroupSettings`, which a node is started with, has the defaults of some and may narrow their ranges.

`consumer.*` are in `consumer_groups.py`. Kafka has `streams.*` group configs too, which are refused by name.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.config.consumer_groups import CONSUMER_DEFINITIONS, check_consumer_group
from penstock.config.definitions import Definition
from penstock.config.kinds import ConfigType, Kind, boolean, choice, double, integer
from penstock.config.overrides import invalid_config, parse_text
from penstock.config.share_groups import LIMITED, ShareGroupSettings, broker_name
from penstock.nearest import nearest
from penstock.types import Isolation

USUAL = ShareGroupSettings()
DEAD_LETTER_TOPIC = "penstock.dead.letter.topic"
KAFKA_DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
KAFKA_DEAD_LETTER_COPIES = "errors.deadletterqueue.copy.record.enable"
KAFKA_DEAD_LETTER_PREFIX = "dlq."
"""Kafka's default. A user that may configure a group could otherwise have the broker write to any topic."""
BY_DURATION = "by_duration"
DAY_MS = 86_400_000
LONGEST_DURATION = 40
"""Characters of an ISO-8601 duration; the longest sensible ones have about twenty."""

TOPIC_NAME_MAX = 249
"""Kafka's; `cluster.topics` checks the same when the topic is created."""


class ShareGroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's settings, complete and valid."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    record_lock_duration_ms: int = 30_000
    auto_offset_reset: str = "latest"
    """`latest`, `earliest` or `by_duration`."""
    auto_offset_reset_ms: int = 0
    """How far back `by_duration` begins; 0 with the others."""
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    delivery_count_limit: int = 5
    """0: no limit."""
    max_record_locks: int = 100_000
    """The most records of one partition that consumers may hold."""
    key_ordered: bool = False
    owner_ordered: bool = False
    """The queue of a clique: the messages of a slot go to the worker that owns the slot."""
    exclusive: bool = False
    dead_letters: bool = True
    dead_letter_topic: str = ""
    """Empty: see `dead_letter_topic_of`."""
    kafka_dead_letter_topic: str = ""
    """Empty: dead letters are written as Penstock writes them. Otherwise, as Kafka does (KIP-1191)."""
    kafka_dead_letter_copies: bool = False
    """Whether such a dead letter has the key and the value of its record."""
    retry_backoff_ms: int = 0
    retry_backoff_max_ms: int = 60_000
    retry_backoff_factor: float = 2.0

    @property
    def names_dead_letter_topic(self) -> bool:
        return bool(self.kafka_dead_letter_topic or self.dead_letter_topic)

    def dead_letter_topic_of(self, topic: str) -> str:
        """The topic that gets a topic's dead letters."""
        return self.kafka_dead_letter_topic or self.dead_letter_topic or f"{topic}.dlq"


def _reset() -> Kind:
    def parse(text: str) -> tuple[str, int]:
        if text in ("latest", "earliest"):
            return text, 0
        name, _, duration = text.partition(":")
        if name != BY_DURATION:
            raise ValueError(text)
        return BY_DURATION, _duration_ms(duration)

    expected = "latest, earliest, or by_duration:PnDTnHnMnS (such as by_duration:PT1H30M)"
    return Kind(type=ConfigType.STRING, expected=expected, parse=parse)


_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:[.,](?P<part>\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def _duration_ms(text: str) -> int:
    """Java's durations without a sign: a negative one would begin in the future. Parts of a millisecond are dropped."""
    found = _DURATION.fullmatch(text) if len(text) <= LONGEST_DURATION else None
    if found is None or not any(found.groups()):
        raise ValueError(text)
    days, hours, minutes, seconds = (
        int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    millis = int((found["part"] or "0").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + millis


def _topic_or_empty() -> Kind:
    def parse(text: str) -> str:
        if text and (text in (".", "..") or not re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_MAX}}}", text)):
            raise ValueError(text)
        return text

    return Kind(type=ConfigType.STRING, expected="the name of a topic, or nothing", parse=parse)


def _prefixed_topic_or_empty() -> Kind:
    def parse(text: str) -> str:
        if text and not text.startswith(KAFKA_DEAD_LETTER_PREFIX):
            raise ValueError(text)
        return str(_topic_or_empty().parse(text))

    expected = f"the name of a topic that begins with {KAFKA_DEAD_LETTER_PREFIX}, or nothing"
    return Kind(type=ConfigType.STRING, expected=expected, parse=parse)


_DEFINITIONS = (
    *CONSUMER_DEFINITIONS,
    Definition(
        name=KAFKA_DEAD_LETTER_COPIES,
        kind=boolean(),
        default="false",
        doc="Whether the records in errors.deadletterqueue.topic.name have the key, the value and the headers of the "
        "original, or only headers that say where it was and why it is dead.",
    ),
    Definition(
        name=KAFKA_DEAD_LETTER_TOPIC,
        kind=_prefixed_topic_or_empty(),
        default="",
        doc="The topic for dead letters, as Kafka writes them (KIP-1191): the topic needs "
        "errors.deadletterqueue.group.enable=true; the broker creates one that does not exist. Empty: "
        "penstock.dead.letter.topic says where dead letters go.",
    ),
    Definition(
        name="penstock.dead.letter.enable",
        kind=boolean(),
        default="true",
        doc="Whether a record that was rejected, or delivered as often as share.delivery.count.limit allows, is copied "
        "to the dead-letter topic. Otherwise it is dropped, as in Kafka.",
    ),
    Definition(
        name=DEAD_LETTER_TOPIC,
        kind=_topic_or_empty(),
        default="",
        doc="The topic for dead letters; not the topic that they come from, and not an internal one. Empty: the name "
        "of the topic that they come from, with .dlq appended.",
    ),
    Definition(
        name="penstock.queue.exclusive",
        kind=boolean(),
        default="false",
        doc="Whether only one consumer at a time gets records, in strict order; the others wait to take over.",
    ),
    Definition(
        name="penstock.queue.order",
        kind=choice("none", "key", "owner"),
        default="none",
        doc="key: the next record of a key is delivered only when the one before it is done. owner: the queue of a "
        "clique, which sets this itself: all records of a key go to the worker that owns the key. none: records go "
        "to any consumer that asks for more.",
    ),
    Definition(
        name="penstock.retry.backoff.factor",
        # 1 is a constant delay; 100 reaches any maximum with the third delivery.
        kind=double(1, 100),
        default="2.0",
        doc="By how much the delay of a released record grows with every further delivery.",
    ),
    Definition(
        name="penstock.retry.backoff.max.ms",
        kind=integer(0, 7 * DAY_MS),
        default="60000",
        doc="The longest delay of a released record.",
    ),
    Definition(
        name="penstock.retry.backoff.ms",
        kind=integer(0, 7 * DAY_MS),
        default="0",
        doc="How long a record that was released for the first time waits for its next delivery; 0: it does not wait, "
        "as in Kafka.",
    ),
    Definition(
        name="share.auto.offset.reset",
        kind=_reset(),
        default="latest",
        doc="Where a queue begins on a partition that it has not read before: at the end, at the beginning, or at "
        "records of at most this age (by_duration:PT1H).",
    ),
    Definition(
        name="share.delivery.count.limit",
        # The queue counts deliveries in one byte.
        kind=integer(0, 255),
        default="5",
        doc="How often a record is delivered at most before it is dead; 0: without limit.",
    ),
    Definition(
        name="share.heartbeat.interval.ms",
        kind=integer(100, 600_000),
        default="5000",
        doc="How often the members of a queue send heartbeats.",
    ),
    Definition(
        name="share.isolation.level",
        kind=choice("read_committed", "read_uncommitted"),
        default="read_uncommitted",
        doc="Whether records of transactions that are open or were aborted are delivered (read_uncommitted).",
    ),
    Definition(
        name="share.partition.max.record.locks",
        kind=integer(1, 1_000_000),
        default="100000",
        doc="How many records of one partition consumers may hold at once.",
    ),
    Definition(
        name="share.record.lock.duration.ms",
        kind=integer(1_000, 3_600_000),
        default="30000",
        doc="How long a consumer may hold a record before another one may get it.",
    ),
    Definition(
        name="share.session.timeout.ms",
        kind=integer(1_000, 1_800_000),
        default="45000",
        doc="How long a member of a queue may be silent before it is removed.",
    ),
)

GROUP_CONFIGS: dict[str, Definition] = {definition.name: definition for definition in _DEFINITIONS}

NOT_OFFERED: dict[str, str] = {
    "streams.": "there is no streams group protocol here; Kafka Streams uses the classic one",
}
"""Prefixes of Kafka's other group configs, and why they are refused."""

_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    KAFKA_DEAD_LETTER_COPIES: lambda on: {"kafka_dead_letter_copies": on},
    KAFKA_DEAD_LETTER_TOPIC: lambda name: {"kafka_dead_letter_topic": name},
    "penstock.dead.letter.enable": lambda on: {"dead_letters": on},
    DEAD_LETTER_TOPIC: lambda name: {"dead_letter_topic": name},
    "penstock.queue.exclusive": lambda on: {"exclusive": on},
    "penstock.queue.order": lambda order: {
        "key_ordered": order == "key",
        "owner_ordered": order == "owner",
    },
    "penstock.retry.backoff.factor": lambda factor: {"retry_backoff_factor": factor},
    "penstock.retry.backoff.max.ms": lambda ms: {"retry_backoff_max_ms": ms},
    "penstock.retry.backoff.ms": lambda ms: {"retry_backoff_ms": ms},
    "share.auto.offset.reset": lambda reset: {
        "auto_offset_reset": reset[0],
        "auto_offset_reset_ms": reset[1],
    },
    "share.delivery.count.limit": lambda count: {"delivery_count_limit": count},
    "share.heartbeat.interval.ms": lambda ms: {"heartbeat_interval_ms": ms},
    "share.isolation.level": lambda level: {"isolation": Isolation[level.upper()]},
    "share.partition.max.record.locks": lambda count: {"max_record_locks": count},
    "share.record.lock.duration.ms": lambda ms: {"record_lock_duration_ms": ms},
    "share.session.timeout.ms": lambda ms: {"session_timeout_ms": ms},
}


_DEFAULTED = {
    "session_timeout_ms": "session_timeout_ms",
    "heartbeat_interval_ms": "heartbeat_interval_ms",
    "record_lock_duration_ms": "record_lock_duration_ms",
    "delivery_count_limit": "delivery_count_limit",
    "partition_max_record_locks": "max_record_locks",
}
"""By the fields of ShareGroupSettings: the fields of ShareGroupConfig that they are the defaults of."""


def group_definition(name: str) -> Definition:
    """The definition of a group config; KafkaError(INVALID_CONFIG) says why there is none, or suggests the nearest."""
    definition = GROUP_CONFIGS.get(name)
    if definition is not None:
        return definition
    for prefix, reason in NOT_OFFERED.items():
        if name.startswith(prefix):
            raise invalid_config(f"{name} is not supported: {reason}")
    raise invalid_config(f"Unknown group config name: {name}{nearest(name, GROUP_CONFIGS)}")


def parse_group_overrides(
    overrides: Mapping[str, str | None], settings: ShareGroupSettings = USUAL
) -> dict[str, str]:
    """A group's own configs, each known and valid, and consistent. KafkaError(INVALID_CONFIG) names what is not."""
    checked: dict[str, str] = {}
    for name, value in overrides.items():
        definition = group_definition(name)
        if value is None:
            raise invalid_config(f"{name} has no value; send a value, or leave it out to use the default")
        _check_range(name, parse_text(definition, value), settings)
        checked[name] = value.strip()
    _check_together(resolve_group(checked, settings))
    check_consumer_group(checked)
    return checked


def resolve_group(overrides: Mapping[str, str], settings: ShareGroupSettings = USUAL) -> ShareGroupConfig:
    """A group's complete settings: its own configs, which were checked when they were set, over the defaults.

    A config that this version does not know, or a value that it no longer accepts, was set by another version: the
    default holds instead, because committed metadata must always apply. A value outside a range that was narrowed since
    is moved into it.
    """
    fields: dict[str, Any] = {own: getattr(settings, name) for name, own in _DEFAULTED.items()}
    for name, value in overrides.items():
        definition = GROUP_CONFIGS.get(name)
        try:
            if definition is not None and name in _FIELDS:
                fields.update(_FIELDS[name](definition.kind.parse(value.strip())))
        except ValueError:
            continue
    for name in LIMITED:
        low, high = settings.range_of(name)
        fields[name] = min(max(fields[name], low), high)
    return ShareGroupConfig(**fields)


def group_default(definition: Definition, settings: ShareGroupSettings) -> str:
    """The value of a group's config that was not set."""
    field = _setting_of(definition.name)
    return str(getattr(settings, field)) if field in _DEFAULTED else definition.default


def _setting_of(name: str) -> str:
    return name.removeprefix("share.").replace(".", "_")


def _check_range(name: str, value: Any, settings: ShareGroupSettings) -> None:
    """In Kafka's words."""
    field = _setting_of(name)
    if field not in LIMITED:
        return
    low, high = settings.range_of(field)
    if value < low:
        limit = broker_name(f"min_{field}")
        raise invalid_config(f"{name} must be greater than or equal to {limit} ({low})")
    if value > high:
        limit = broker_name(f"max_{field}")
        raise invalid_config(f"{name} must be less than or equal to {limit} ({high})")


def _check_together(config: ShareGroupConfig) -> None:
    if config.owner_ordered and config.exclusive:
        raise invalid_config(
            "penstock.queue.exclusive is true and penstock.queue.order is owner: a clique has many workers; "
            "expected one of the two"
        )
    if config.kafka_dead_letter_topic and config.dead_letter_topic:
        raise invalid_config(
            f"{KAFKA_DEAD_LETTER_TOPIC} and {DEAD_LETTER_TOPIC} are both set: a dead letter goes to one topic; "
            "expected one of the two"
        )
    if config.kafka_dead_letter_topic and not config.dead_letters:
        raise invalid_config(
            f"{KAFKA_DEAD_LETTER_TOPIC} is set and penstock.dead.letter.enable is false; expected one of the two"
        )
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise invalid_config(
            f"share.heartbeat.interval.ms ({config.heartbeat_interval_ms}) is not below share.session.timeout.ms "
            f"({config.session_timeout_ms}): members would be removed before their next heartbeat; lower it"
        )
    if config.retry_backoff_ms > config.retry_backoff_max_ms:
        raise invalid_config(
            f"penstock.retry.backoff.ms ({config.retry_backoff_ms}) is above penstock.retry.backoff.max.ms "
            f"({config.retry_backoff_max_ms}); expected at most the maximum"
        )
