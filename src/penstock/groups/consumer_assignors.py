"""The assignors of consumer groups: pure functions from members and topics to a target assignment.

- `uniform` gives every member the same number of partitions, as far as subscriptions allow: the numbers of two members
  with the same subscription differ by one at most.
- `range` gives every member a contiguous range of each topic. Topics with equal numbers of partitions and the same
  readers are divided at the same places, so that a member can join records by key.

Both are sticky: a partition moves only if that is needed for the above. All partitions of every topic that somebody
reads are given to exactly one member each. The result does not depend on the order of the input.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from penstock.groups.consumer_values import Assignment, AssignmentJob, MemberSubscription, TopicIdPartition

Members = Mapping[str, MemberSubscription]
Topics = Mapping[UUID, int]
Target = dict[str, Assignment]

LAST = 2**31
"""Behind every partition."""
BALANCING_PASSES = 16
"""How often `uniform` goes over members with different subscriptions. It usually finds nothing to improve after two or
three; the bound keeps an odd case from taking for ever."""


def compute(job: AssignmentJob) -> Target:
    return ASSIGNORS[job.assignor](job.members, job.topics)


# Uniform


def uniform(members: Members, topics: Topics) -> Target:
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) <= 1:
        return _evenly(members, topics)
    return _Balancer(members, topics).target()


def _evenly(members: Members, topics: Topics) -> Target:
    """All members read the same topics: everyone gets `base` partitions, and some get one more."""
    if not members:
        return {}
    read = next(iter(members.values())).topics
    free = dict.fromkeys(_partitions(topics, read))
    base, extra = divmod(len(free), len(members))
    target: dict[str, list[TopicIdPartition]] = {}
    for member_id in sorted(members):
        mine = [each for each in sorted(members[member_id].current) if each in free]
        quota = base + (extra > 0 and len(mine) > base)
        extra -= quota > base
        target[member_id] = mine[:quota]
        for partition in target[member_id]:
            del free[partition]
    _deal(target, list(free), base, extra)
    return {member_id: frozenset(mine) for member_id, mine in target.items()}


def _deal(
    target: dict[str, list[TopicIdPartition]], free: list[TopicIdPartition], base: int, extra: int
) -> None:
    """Gives free partitions to members below `base`, one each in turn, so that a topic is spread; then one more to as
    many members as there are partitions left."""
    at = 0
    needy = [mine for mine in target.values() if len(mine) < base]
    while needy:
        for mine in needy:
            mine.append(free[at])
            at += 1
        needy = [mine for mine in needy if len(mine) < base]
    for mine in [mine for mine in target.values() if len(mine) == base][:extra]:
        mine.append(free[at])
        at += 1


class _Balancer:
    """Members read different topics. Free partitions go to the reader with the fewest; then partitions move from one
    reader to another that has at least two fewer, until there is no such pair."""

    def __init__(self, members: Members, topics: Topics) -> None:
        self._topics = topics
        self._readers: dict[UUID, list[str]] = {}
        for member_id in sorted(members):
            for topic_id in members[member_id].topics & topics.keys():
                self._readers.setdefault(topic_id, []).append(member_id)
        self._load = dict.fromkeys(sorted(members), 0)
        self._owner: dict[TopicIdPartition, str] = {}
        for member_id in self._load:
            self._keep(member_id, members[member_id])

    def _keep(self, member_id: str, member: MemberSubscription) -> None:
        for topic_id, index in sorted(member.current & set(_partitions(self._topics, member.topics))):
            if (topic_id, index) not in self._owner:
                self._owner[topic_id, index] = member_id
                self._load[member_id] += 1

    def target(self) -> Target:
        # Topics with few readers first: their partitions have the least choice.
        order = sorted(self._readers, key=lambda topic_id: (len(self._readers[topic_id]), topic_id))
        for _ in range(BALANCING_PASSES):
            moves = [self._balance(topic_id) for topic_id in order]
            if not any(moves):
                break
        held: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in self._load}
        for partition, member_id in self._owner.items():
            held[member_id].append(partition)
        return {member_id: frozenset(mine) for member_id, mine in held.items()}

    def _balance(self, topic_id: UUID) -> int:
        """Returns how many partitions of the topic got another owner."""
        least = [(self._load[member_id], member_id) for member_id in self._readers[topic_id]]
        heapq.heapify(least)
        moves = 0
        for index in range(self._topics[topic_id]):
            while least[0][0] != self._load[least[0][1]]:
                heapq.heappop(least)  # the load has changed since, and the heap has another entry for it
            load, member_id = least[0]
            owner = self._owner.get((topic_id, index))
            if owner is not None and self._load[owner] - load < 2:
                continue
            moves += 1
            self._owner[topic_id, index] = member_id
            for changed, by in ((member_id, 1), (owner, -1)):
                if changed is not None:
                    self._load[changed] += by
                    heapq.heappush(least, (self._load[changed], changed))
        return moves


# Range


def range_(members: Members, topics: Topics) -> Target:
    target: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in members}
    places = {member_id: _Place(member_id, member) for member_id, member in members.items()}
    for topic_id in sorted(topics):
        readers = [member_id for member_id in members if topic_id in members[member_id].topics]
        if not readers:
            continue
        readers.sort(key=lambda member_id: places[member_id].in_topic(topic_id))
        base, extra = divmod(topics[topic_id], len(readers))
        first = 0
        for position, member_id in enumerate(readers):
            end = first + base + (position < extra)
            target[member_id] += ((topic_id, index) for index in range(first, end))
            first = end
    return {member_id: frozenset(mine) for member_id, mine in target.items()}


class _Place:
    """The order of members in a topic. They stay in the order of the ranges that they have, and new ones come last: so
    ranges shift, and do not change hands. In a new topic they have the order that they have in the others. A static
    member has its place by its instance, which survives a restart."""

    def __init__(self, member_id: str, member: MemberSubscription) -> None:
        self._lowest: dict[UUID, int] = {}
        for topic_id, index in member.current:
            self._lowest[topic_id] = min(index, self._lowest.get(topic_id, LAST))
        self._rest = min(self._lowest.values(), default=LAST), member.instance_id or "", member_id

    def in_topic(self, topic_id: UUID) -> tuple[int, int, str, str]:
        return self._lowest.get(topic_id, LAST), *self._rest


def _partitions(topics: Topics, wanted: Iterable[UUID]) -> Iterable[TopicIdPartition]:
    return ((each, index) for each in sorted(wanted) if each in topics for index in range(topics[each]))


ASSIGNORS: dict[str, Callable[[Members, Topics], Target]] = {"uniform": uniform, "range": range_}
"""By the names that clients use."""
DEFAULT_ASSIGNOR = "uniform"
"""The assignor of a group whose members ask for none, as in Kafka."""
