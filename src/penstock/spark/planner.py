"""The driver's requests to the brokers: which partitions exist, and which offsets a bound means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.client.wire import Cluster, FoundOffset, Topic
from penstock.errors import ConfigError
from penstock.spark.data_loss import report
from penstock.spark.options import DEAD_LETTER_SUFFIX, SourceOptions
from penstock.spark.read_bounds import EARLIEST, LATEST, Bound
from penstock.types import TopicPartition


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The partitions that the subscription has now."""

    topic_partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, str]


class Planner:
    """One per reader. Connects when it is first asked."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.driver)
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def layout(self, *, require_all: bool) -> Layout:
        """With `require_all`, a named topic or partition that does not exist is an error."""
        subscription = self._options.subscription
        topics = self.cluster.topics(subscription.wanted_topics())
        if subscription.pattern:  # internal topics match ".*" too, and are never meant
            topics = {name: topic for name, topic in topics.items() if not topic.internal}
            topics = self._without_dead_letters(topics)
        there = {name: topic.partitions for name, topic in topics.items()}
        missing = subscription.missing(there)
        if missing and require_all:
            raise ConfigError(
                subscription.option,
                subscription.text,
                f"topics and partitions that exist: {', '.join(missing[:10])} does not. "
                "`penstock topics create NAME` creates a topic",
            )
        topic_partitions = subscription.select(there)
        ids = {tp.topic: str(topics[tp.topic].topic_id) for tp in topic_partitions}
        return Layout(topic_partitions=tuple(topic_partitions), topic_ids=ids)

    def _without_dead_letters(self, topics: dict[str, Topic]) -> dict[str, Topic]:
        """A query that reads its own dead letters would write them again, for ever."""
        if not self._options.to_dead_letters:
            return topics
        own = self._options.dead_letter_topic
        return {
            name: topic
            for name, topic in topics.items()
            if (name != own if own else not name.endswith(DEAD_LETTER_SUFFIX))
        }

    def earliest(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(dict.fromkeys(topic_partitions, EARLIEST))

    def latest(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a reader with the query's isolation level finds no more records now."""
        return self._offsets(dict.fromkeys(topic_partitions, LATEST))

    def log_ends(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of the logs, whatever the isolation level."""
        wanted = dict.fromkeys(topic_partitions, LATEST)
        return {tp: found.offset for tp, found in self.cluster.offsets(wanted).items()} if wanted else {}

    def resolve(
        self, bound: Bound, topic_partitions: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, int]:
        """The offset of each partition; a bound that names partitions must name exactly these."""
        named = bound.named()
        if named is not None and set(named) != set(topic_partitions):
            odd = sorted(set(named) ^ set(topic_partitions))
            raise ConfigError(
                bound.option,
                ", ".join(map(str, odd[:10])),
                f"all partitions of {self._options.subscription} and no others: these are in only one of the two",
            )
        if bound.is_by_time:
            return self._by_time(bound, topic_partitions)
        if bound.by_partition is None:
            return self._offsets(
                dict.fromkeys(topic_partitions, EARLIEST if bound.everywhere == EARLIEST else LATEST)
            )
        asked = {tp: offset for tp, offset in bound.by_partition.items() if offset < 0}
        resolved = {**bound.by_partition, **self._offsets(asked)}
        self._check_inside(bound, {tp: resolved[tp] for tp in set(topic_partitions) - set(asked)})
        return resolved

    def _by_time(
        self, bound: Bound, topic_partitions: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, int]:
        times = bound.time_by_partition or dict.fromkeys(topic_partitions, bound.time_ms or 0)
        found = self._ask(times)
        late = {tp for tp, answer in found.items() if answer.offset < 0}
        if late and not bound.else_latest:
            tp = min(late)
            raise ConfigError(
                bound.option,
                times[tp],
                f"a time at or before the last record of {tp}, which has none at or after it. "
                "startingOffsetsByTimestampStrategy=latest starts there at the end",
            )
        return {**{tp: answer.offset for tp, answer in found.items()}, **self.latest(late)}

    def _check_inside(self, bound: Bound, offsets: Mapping[TopicPartition, int]) -> None:
        """Offsets that a person wrote must be in the log, or just after it."""
        earliest, latest = self.earliest(offsets), self.latest(offsets)
        for tp, offset in sorted(offsets.items()):
            if offset > latest[tp]:
                raise ConfigError(
                    bound.option, f"{tp}: {offset}", f"an offset from {earliest[tp]} to {latest[tp]}"
                )
            if offset < earliest[tp]:
                report(
                    f"{bound.option} names offset {offset} of {tp}, and the log begins at {earliest[tp]}",
                    fail=self._options.fail_on_data_loss,
                )

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: answer.offset for tp, answer in self._ask(wanted).items()}

    def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        return self.cluster.offsets(wanted, isolation=self._options.isolation) if wanted else {}
