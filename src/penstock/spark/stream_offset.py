"""A stream's position, as Spark stores it in its checkpoint.

    {"version": 1, "topics": {"orders": {"0": 120, "1": 98}}, "group": "...", "ids": {"orders": "..."},
     "since": {"orders": {"1": 0}}}

`topics`   the next offset of each partition.
`group`    the consumer group that shows the stream's progress. It is here because the checkpoint is the stream's
           identity: a restart continues under the same name, a new checkpoint gets a new one.
`ids`      the topics' ids: a topic that was deleted and created again has another, even if its offsets look right.
`since`    where the partitions begin that the previous position does not have. This prevents silent loss:
           Spark persists only the *end* of a batch, asks for the start of batch 0 again after a failure, and "latest"
           has moved by then. The end that it did persist says where the batch really began.

Equal positions must have equal text: Spark takes a position that differs from the last one for new data.

A checkpoint that Spark's Kafka connector wrote is understood too, so that a job can change its format and continue. Its
positions have offsets only; the group comes with the first batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from penstock.errors import ConfigError
from penstock.types import TopicPartition

VERSION: Final = 1
NO_ID: Final = str(UUID(int=0))

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamOffset:
    positions: Positions
    group: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    since: Positions = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "version": VERSION,
            "topics": _nested(self.positions),
            "group": self.group,
            "ids": dict(sorted(self.topic_ids.items())),
        }
        if self.since:
            out["since"] = _nested(self.since)
        return out

    def moved(self, positions: Positions, topic_ids: Mapping[str, str], since: Positions) -> "StreamOffset":
        """The next position; itself if nothing is new, so that its text stays the same."""
        if positions == self.positions and topic_ids == self.topic_ids and not since:
            return self
        return replace(self, positions=positions, topic_ids=topic_ids, since=since)


def from_json(value: Any) -> StreamOffset:
    """Our own positions, and those of Spark's Kafka connector: {"orders": {"0": 120}}. ConfigError for any other, which
    may be any JSON: other sources write plain numbers."""
    found = value if isinstance(value, dict) else {}
    if "version" not in found and found and all(map(_is_connectors, found.values())):
        return StreamOffset(positions=_flat(found), group="")
    if found.get("version") != VERSION or not isinstance(found.get("topics"), dict):
        raise ConfigError(
            "checkpointLocation",
            str(value)[:200],
            f"a checkpoint of this source (version {VERSION}) or of Spark's Kafka connector. "
            "Start with a new checkpoint, and set startingOffsets",
        )
    return StreamOffset(
        positions=_flat(found["topics"]),
        group=found["group"],
        topic_ids=found.get("ids", {}),
        since=_flat(found.get("since", {})),
    )


def starts(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, int]:
    """Where each partition of the batch that ends at `end` begins: the offset in `since`, if it has one."""
    if start.since == start.positions and not end.since and end.positions:
        raise ConfigError(
            "checkpointLocation",
            str(end.to_json()["topics"])[:200],
            "a first batch that is done: this one was planned by another source, which alone knows where it begins. "
            "Let that source finish it, or start with a new checkpoint",
        )
    found = {tp: end.since.get(tp, start.positions.get(tp)) for tp in end.positions}
    missing = [str(tp) for tp, position in found.items() if position is None]
    if missing:
        raise ConfigError(
            "checkpointLocation", ", ".join(missing[:5]), "a start for each partition; it is damaged"
        )
    return {tp: position for tp, position in found.items() if position is not None}


def _is_connectors(value: object) -> bool:
    return isinstance(value, dict) and all(
        number.isdecimal() and isinstance(offset, int) for number, offset in value.items()
    )


def _nested(positions: Positions) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for tp in sorted(positions):
        out.setdefault(tp.topic, {})[str(tp.partition)] = positions[tp]
    return out


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, by_partition in nested.items()
        for number, offset in by_partition.items()
    }


def is_other_topic(known: str, found: str) -> bool:
    """Whether a topic was created again. Brokers before Kafka 2.8 have no ids, and return zero for all."""
    return known != found and NO_ID not in (known, found)


def topics_of(topic_partitions: Iterable[TopicPartition]) -> set[str]:
    return {tp.topic for tp in topic_partitions}
