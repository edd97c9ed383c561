"""One consumer group of KIP-848: its members, their targets, and which member holds which partition. It decides nothing
about time, answers or the disk.

Three epochs move it along:

- the *group epoch* rises with every change of members, of subscriptions, or of the topics that they read;
- the *assignment epoch* is the group epoch for which the target assignment was computed;
- a *member's epoch* is the assignment epoch that it has reached (`consumer_member.py`).

Invariants, cited in the tests:

1. `owners` has exactly the partitions in the hands of the members, so that each has one owner.
2. Epochs never go back; a member's epoch <= the assignment epoch <= the group epoch.
3. `topics` has exactly the topics that the members subscribe to, as the metadata has them.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from uuid import UUID

from penstock.groups.consumer_assignors import DEFAULT_ASSIGNOR
from penstock.groups.consumer_member import ConsumerMember
from penstock.groups.consumer_saving import Saving
from penstock.groups.consumer_storage import RecordKind
from penstock.groups.consumer_values import (
    NOTHING,
    Assignment,
    AssignmentJob,
    MemberState,
    MemberSubscription,
    TopicIdPartition,
)
from penstock.groups.share_values import SharedTopic
from penstock.groups.states import GroupState
from penstock.types import Caller

HASH_BYTES = 8


class Pattern:
    """A regular expression that members subscribe to, and the topics that match it."""

    __slots__ = ("caller", "cost", "found_ms", "members", "topics")

    def __init__(self, topics: frozenset[str] = frozenset()) -> None:
        self.topics = topics
        self.cost = 0
        """Its instructions, as `ConsumerCluster.cost` counts them."""
        self.found_ms = 0
        self.members = 0
        self.caller: Caller | None = None
        """On whose behalf it is matched. None: not known since the coordinator changed."""


class ConsumerGroup:
    """One group's state."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.assigned_ms: int | None = None
        """When the target was last computed. None: never."""
        self.is_computing = False
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        self.owners: dict[TopicIdPartition, str] = {}
        self.patterns: dict[str, Pattern] = {}
        self.names: Counter[str] = Counter()
        """How many members and patterns name each topic. It is kept up to date, so that a heartbeat does not depend on
        the number of members."""
        self.topics: dict[str, SharedTopic] = {}
        self.topics_hash = 0
        self.metadata_bytes = 0
        """The size of all members' subscriptions."""
        self.saving = Saving()

    # States

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        done = all(self._is_done(member) for member in self.members.values())
        return GroupState.STABLE if done else GroupState.RECONCILING

    def _is_done(self, member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        return max(sorted(votes), key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR

    # Members

    def add(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.own(member)

    def remove(self, member: ConsumerMember) -> None:
        """Everything in its hands is free."""
        self.disown(member)
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        self.mark_member(member)
        self.mark(RecordKind.TARGET, member.member_id)

    def name_instance(self, member: ConsumerMember, instance_id: str) -> None:
        """The member joins again as this instance, which no other member is."""
        if member.instance_id == instance_id:
            return
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        member.instance_id = instance_id
        self.static[instance_id] = member.member_id

    def own(self, member: ConsumerMember) -> None:
        for partition in member.held:
            self.owners[partition] = member.member_id

    def disown(self, member: ConsumerMember) -> None:
        for partition in member.held:
            if self.owners.get(partition) == member.member_id:
                del self.owners[partition]

    # Subscriptions

    def subscribed(self, member: ConsumerMember) -> set[str]:
        pattern = self.patterns.get(member.pattern)
        return {*member.topics, *(pattern.topics if pattern is not None else ())}

    def count(self, names: Iterable[str], by: int) -> list[str]:
        """Counts names that a member or a pattern has begun (1) or ceased (-1) to name. Returns those that are new to
        the group or have left it."""
        changed = []
        for name in names:
            self.names[name] += by
            if self.names[name] == max(by, 0):
                changed.append(name)
                if by < 0:
                    del self.names[name]
        return changed

    def job(self) -> AssignmentJob:
        """The computation of the next target, with everything that it needs."""
        return AssignmentJob(
            group_id=self.group_id,
            epoch=self.epoch,
            assignor=self.assignor,
            members=dict(self._subscribers()),
            topics={topic.topic_id: topic.partitions for topic in self.topics.values()},
        )

    def _subscribers(self) -> Iterator[tuple[str, MemberSubscription]]:
        ids: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        for member in self.members.values():
            names = member.topics, member.pattern
            if names not in ids:  # most members share one subscription
                topics = (self.topics.get(name) for name in self.subscribed(member))
                ids[names] = frozenset(topic.topic_id for topic in topics if topic is not None)
            yield (
                member.member_id,
                MemberSubscription(
                    instance_id=member.instance_id,
                    topics=ids[names],
                    current=self.targets.get(member.member_id, NOTHING),
                ),
            )

    def hash_topics(self) -> int:
        """A hash of the topics that the group reads, by which the next coordinator sees whether they have changed. 0
        for none."""
        if not self.topics:
            return 0
        digest = hashlib.blake2b(digest_size=HASH_BYTES)
        for name in sorted(self.topics):
            topic = self.topics[name]
            digest.update(struct.pack(">16si", topic.topic_id.bytes, topic.partitions))
        return int.from_bytes(digest.digest(), "big", signed=True)

    # Changes to be stored

    def records(self) -> Iterator[tuple[RecordKind, str]]:
        """All records of the group, by kind and name."""
        yield RecordKind.GROUP, ""
        yield RecordKind.TARGET_EPOCH, ""
        for text in self.patterns:
            yield RecordKind.PATTERN, text
        for member_id in self.members:
            for kind in (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT):
                yield kind, member_id

    def mark(self, kind: RecordKind, name: str = "") -> int:
        return self.saving.mark(kind, name)

    def mark_current(self, member: ConsumerMember) -> None:
        member.change = self.mark(RecordKind.CURRENT, member.member_id)

    def mark_member(self, member: ConsumerMember) -> None:
        """All records of a member, but its target."""
        self.mark(RecordKind.MEMBER, member.member_id)
        self.mark_current(member)

    def bump(self) -> None:
        """Members, subscriptions or topics have changed."""
        self.epoch += 1
        self.topics_hash = self.hash_topics()
        self.mark(RecordKind.GROUP)
