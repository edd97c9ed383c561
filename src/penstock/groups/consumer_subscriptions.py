"""The subscriptions of consumer groups: names of topics, and regular expressions for names.

Expressions are matched by RE2, whose time is linear in the length of the name, and each only with names that are new to
it: a new expression with all topics, a new topic with all expressions. `limits.max_group_patterns` and
`limits.max_pattern_bytes` bound the work for a group, `limits.max_pattern_instructions` that for all groups of a
coordinator, which are matched in one turn of the event loop. As in Kafka, an expression is matched on behalf of the
first member that sent it: it finds the topics that this member may describe, for all members that share it.
"""

from collections.abc import Collection, Iterable

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_group import ConsumerGroup, Pattern
from penstock.groups.consumer_member import ConsumerMember
from penstock.groups.consumer_storage import RecordKind
from penstock.groups.consumer_values import ConsumerCluster
from penstock.groups.share_group import plan_size
from penstock.groups.shared_state import SharedState

Subscription = tuple[tuple[str, ...], str]


class Subscriptions:
    """Keeps `names`, `topics` and `patterns` of all consumer groups up to date."""

    def __init__(self, shared: SharedState, cluster: ConsumerCluster) -> None:
        self._shared = shared
        self._cluster = cluster
        self._readers: dict[str, dict[str, ConsumerGroup]] = {}
        """The groups that read each topic, by name."""
        self._matching: dict[str, ConsumerGroup] = {}
        """The groups with patterns."""

    # Members

    def check(self, group: ConsumerGroup | None, topics: Collection[str], pattern: str | None) -> None:
        limits = self._shared.limits
        if len(topics) > limits.max_subscribed_topics:
            limit = limits.max_subscribed_topics
            raise _invalid(f"SubscribedTopicNames: {len(topics)}; limits.max_subscribed_topics is {limit}")
        if plan_size(topics) > limits.max_member_metadata_bytes:
            raise _invalid("SubscribedTopicNames: above limits.max_member_metadata_bytes")
        if not pattern:
            return
        if len(pattern.encode()) > limits.max_pattern_bytes:
            limit = limits.max_pattern_bytes
            message = f"SubscribedTopicRegex: above limits.max_pattern_bytes ({limit})"
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
        known = group.patterns if group is not None else {}
        if pattern not in known and len(known) >= limits.max_group_patterns:
            limit = limits.max_group_patterns
            raise _invalid(f"SubscribedTopicRegex: the group has limits.max_group_patterns ({limit})")
        cost = self._cluster.cost(pattern)
        if pattern not in known and self._cost() + cost > limits.max_pattern_instructions:
            limit = limits.max_pattern_instructions
            message = "SubscribedTopicRegex: the patterns of all groups of this coordinator are above "
            raise _invalid(
                f"{message}limits.max_pattern_instructions ({limit}): expected names, or a shorter one"
            )

    def _cost(self) -> int:
        return sum(pattern.cost for group in self._matching.values() for pattern in group.patterns.values())

    def check_size(self, group: ConsumerGroup, topics: Collection[str], before: Collection[str] = ()) -> None:
        size = group.metadata_bytes + plan_size(topics) - plan_size(before)
        if size > self._shared.limits.max_group_metadata_bytes:
            message = "SubscribedTopicNames: the group is above limits.max_group_metadata_bytes"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def change(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember, before: Subscription) -> None:
        """The member has another subscription than before; a new member had none."""
        topics, pattern = before
        begun = group.count(member.topics, 1)
        if member.pattern:
            begun += self._follow(now_ms, group, member)
        ended = group.count(topics, -1)
        if pattern:
            ended += self._unfollow(group, pattern)
        group.metadata_bytes += plan_size(member.topics) - plan_size(topics)
        self._look_up(group, {*begun, *ended})

    def drop(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """The member is gone."""
        ended = group.count(member.topics, -1)
        if member.pattern:
            ended += self._unfollow(group, member.pattern)
        group.metadata_bytes -= plan_size(member.topics)
        self._look_up(group, ended)

    # Patterns

    def refresh(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """After a change of the coordinator it is not known on whose behalf a pattern is matched, until the first
        member reports. Returns whether other topics match it."""
        pattern = group.patterns.get(member.pattern)
        if pattern is None or pattern.caller is not None:
            return False
        pattern.caller, pattern.cost = member.caller, self._cluster.cost(member.pattern)
        found = self._cluster.matching(member.pattern, member.caller)
        changed = self._found(now_ms, group, member.pattern, found)
        self._look_up(group, changed)
        return bool(changed)

    def _follow(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> list[str]:
        pattern = group.patterns.get(member.pattern)
        if pattern is not None:
            pattern.members += 1
            return []
        self._matching[group.group_id] = group
        pattern = group.patterns[member.pattern] = Pattern()
        pattern.members, pattern.caller = 1, member.caller
        pattern.cost = self._cluster.cost(member.pattern)
        group.mark(RecordKind.PATTERN, member.pattern)
        found = self._cluster.matching(member.pattern, member.caller)
        return self._found(now_ms, group, member.pattern, found)

    def _unfollow(self, group: ConsumerGroup, text: str) -> list[str]:
        pattern = group.patterns[text]
        pattern.members -= 1
        if pattern.members:
            return []
        del group.patterns[text]
        if not group.patterns:
            self._matching.pop(group.group_id, None)
        group.mark(RecordKind.PATTERN, text)
        return group.count(pattern.topics, -1)

    def _found(self, now_ms: int, group: ConsumerGroup, text: str, topics: frozenset[str]) -> list[str]:
        pattern = group.patterns[text]
        if topics == pattern.topics:
            return []
        changed = group.count(topics - pattern.topics, 1) + group.count(pattern.topics - topics, -1)
        pattern.topics, pattern.found_ms = topics, now_ms
        group.mark(RecordKind.PATTERN, text)
        return changed

    # Topics

    def topics_changed(self, now_ms: int, names: Collection[str]) -> list[ConsumerGroup]:
        """Topics were created, deleted or extended. Returns the groups that read other topics now."""
        affected = {group_id: None for name in names for group_id in self._readers.get(name, ())}
        affected |= dict.fromkeys(self._matching)
        groups = [group for each in affected if (group := self._group(each)) is not None]
        return [group for group in groups if self._reads_others(now_ms, group, names)]

    def _group(self, group_id: str) -> ConsumerGroup | None:
        group = self._shared.find(group_id)
        return None if group is None else group.consumer

    def _reads_others(self, now_ms: int, group: ConsumerGroup, names: Collection[str]) -> bool:
        for text, pattern in group.patterns.items():
            if pattern.caller is not None:
                found = self._cluster.matching(text, pattern.caller, names)
                self._found(now_ms, group, text, pattern.topics.difference(names) | found)
        return self._look_up(group, names)

    def _look_up(self, group: ConsumerGroup, names: Iterable[str]) -> bool:
        """Whether one of these is another topic to the group than before."""
        changed = False
        for name in names:
            is_named = name in group.names
            if is_named:
                self._readers.setdefault(name, {})[group.group_id] = group
            else:
                self._unread(group.group_id, name)
            topic = self._cluster.topic(name) if is_named else None
            if topic != group.topics.get(name):
                changed = True
                if topic is None:
                    del group.topics[name]
                else:
                    group.topics[name] = topic
        return changed

    def _unread(self, group_id: str, name: str) -> None:
        groups = self._readers.get(name)
        if groups is not None and groups.pop(group_id, None) is not None and not groups:
            del self._readers[name]

    def forget(self, group: ConsumerGroup) -> None:
        """The group is gone, or is not a consumer group any more."""
        self._matching.pop(group.group_id, None)
        for name in group.names:
            self._unread(group.group_id, name)

    def restore(self, group: ConsumerGroup) -> bool:
        """All records of the group were replayed. Returns whether the topics have changed since."""
        for member in group.members.values():
            group.count(member.topics, 1)
            group.metadata_bytes += plan_size(member.topics)
            if member.pattern:
                group.patterns.setdefault(member.pattern, Pattern()).members += 1
        for text in [text for text, pattern in group.patterns.items() if not pattern.members]:
            del group.patterns[text]
            group.mark(RecordKind.PATTERN, text)
        for pattern in group.patterns.values():
            group.count(pattern.topics, 1)
        if group.patterns:
            self._matching[group.group_id] = group
        self._look_up(group, list(group.names))
        return bool(group.members) and group.hash_topics() != group.topics_hash


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
