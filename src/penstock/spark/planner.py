"""The driver's questions to the brokers: which partitions there are, and which offsets a bound means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.client.wire import Cluster, FoundOffset, Topic
from penstock.errors import ConfigError
from penstock.spark.data_loss import report
from penstock.spark.options import DEAD_LETTER_SUFFIX, SourceOptions
from penstock.spark.places import EARLIEST, LATEST, Bound
from penstock.types import TopicPartition


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The partitions that the subscription has now."""

    places: tuple[TopicPartition, ...]
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
        """With `require_all`, a topic or partition that was named and is not there is an error."""
        subscription = self._options.subscription
        topics = self.cluster.topics(subscription.wanted_topics())
        if subscription.pattern:  # the brokers' own topics match ".*" too, and nobody means them
            topics = {name: topic for name, topic in topics.items() if not topic.internal}
            topics = self._without_dead_letters(topics)
        there = {name: topic.partitions for name, topic in topics.items()}
        missing = subscription.missing(there)
        if missing and require_all:
            raise ConfigError(
                subscription.option,
                subscription.text,
                f"topics and partitions that exist: {', '.join(missing[:10])} does not. "
                "`penstock topics create NAME` makes a topic",
            )
        places = subscription.select(there)
        ids = {place.topic: str(topics[place.topic].topic_id) for place in places}
        return Layout(places=tuple(places), topic_ids=ids)

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

    def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(dict.fromkeys(places, EARLIEST))

    def latest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(dict.fromkeys(places, LATEST))

    def resolve(self, bound: Bound, places: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        """The offset of each place; a bound that names partitions must name exactly these."""
        named = bound.named()
        if named is not None and set(named) != set(places):
            odd = sorted(set(named) ^ set(places))
            raise ConfigError(
                bound.option,
                ", ".join(map(str, odd[:10])),
                f"all partitions of {self._options.subscription} and no others: these are in only one of the two",
            )
        if bound.is_by_time:
            return self._by_time(bound, places)
        if bound.by_partition is None:
            return self._offsets(dict.fromkeys(places, EARLIEST if bound.everywhere == EARLIEST else LATEST))
        asked = {place: offset for place, offset in bound.by_partition.items() if offset < 0}
        resolved = {**bound.by_partition, **self._offsets(asked)}
        self._check_inside(bound, {place: resolved[place] for place in set(places) - set(asked)})
        return resolved

    def _by_time(self, bound: Bound, places: tuple[TopicPartition, ...]) -> dict[TopicPartition, int]:
        times = bound.time_by_partition or dict.fromkeys(places, bound.time_ms or 0)
        found = self._ask(times)
        late = {place for place, answer in found.items() if answer.offset < 0}
        if late and not bound.else_latest:
            place = min(late)
            raise ConfigError(
                bound.option,
                times[place],
                f"a time at or before the last record of {place}, which has none at or after it. "
                "startingOffsetsByTimestampStrategy=latest starts there at the end",
            )
        return {**{place: answer.offset for place, answer in found.items()}, **self.latest(late)}

    def _check_inside(self, bound: Bound, offsets: Mapping[TopicPartition, int]) -> None:
        """Offsets that a person wrote must be in the log, or just after it."""
        earliest, latest = self.earliest(offsets), self.latest(offsets)
        for place, offset in sorted(offsets.items()):
            if offset > latest[place]:
                raise ConfigError(
                    bound.option, f"{place}: {offset}", f"an offset from {earliest[place]} to {latest[place]}"
                )
            if offset < earliest[place]:
                report(
                    f"{bound.option} names offset {offset} of {place}, and the log begins at {earliest[place]}",
                    fail=self._options.fail_on_data_loss,
                )

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {place: answer.offset for place, answer in self._ask(wanted).items()}

    def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        return self.cluster.offsets(wanted) if wanted else {}
