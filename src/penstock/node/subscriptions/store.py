"""Where subscriptions are kept: as the committed offsets of the group of their name. Every Kafka tool shows their lag.

A subscription has no members, which is why Kafka's own rules for groups do the rest: whoever commits without being a
member may do so while there are none; and an offset that was committed with a retention of its own goes when that is
over. The retention is the subscription's TTL, renewed while it is attached. Nobody has to keep watch for it, and no
failover forgets it.
"""

from collections.abc import Iterable, Mapping
from uuid import UUID

from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, CommittedOffset, OffsetToCommit
from penstock.node.clock import Clock
from penstock.node.coordination.group_manager import GroupManager
from penstock.node.subscriptions.values import Refused
from penstock.queue.subscription import Position
from penstock.queue.subscription_metadata import decode_done, encode_metadata, is_subscription
from penstock.types import NO_TERM, TopicPartition

TRANSIENT = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

NO_TERMS: Mapping[TopicPartition, int] = {}

GROUP_TYPE = "classic"
"""As Kafka calls a group whose offsets were committed without members, too."""


class SubscriptionStore:
    """Reads and writes subscriptions at this node, which must be their home."""

    def __init__(self, groups: GroupManager, clock: Clock, limits: Limits) -> None:
        self._groups = groups
        self._clock = clock
        self._limits = limits

    def load(self, name: str) -> dict[TopicPartition, Position]:
        """Where it was, in all topics that it ever read; nothing if it is new, or its TTL is over. KafkaError if this
        node cannot know; Refused if the name is a consumer group's that has members."""
        committed = self._groups.committed(name)
        self._check_unused(name)
        now_ms = self._clock.wall_ms()
        return {key: _place(key, one) for key, one in committed.items() if not _is_over(one, now_ms)}

    def terms(self, name: str) -> dict[TopicPartition, int]:
        """Of the leader in whose log each position was when it was stored; -1 where nobody said so."""
        return {key: one.leader_epoch for key, one in self._groups.committed(name).items()}

    def stored(self, name: str) -> dict[TopicPartition, CommittedOffset]:
        """What is stored under this name and marked as a subscription's. KafkaError if this node cannot know."""
        now_ms = self._clock.wall_ms()
        return {
            key: one
            for key, one in self._groups.committed(name).items()
            if is_subscription(one.metadata) and not _is_over(one, now_ms)
        }

    def names(self) -> list[str]:
        """Everything that may be a subscription at home here. KafkaError while not all of it is known."""
        if not self._groups.cores.all_online:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a coordinator is reading its log")
        return [row.group_id for row in self._groups.list((), (GROUP_TYPE,))]

    def _check_unused(self, name: str) -> None:
        group = self._groups.describe(name)
        if group is not None and group.members:
            message = (
                f"{name!r} is a consumer group with {len(group.members)} members: a subscription needs a name of "
                "its own, or that these leave"
            )
            raise Refused("group_in_use", message)

    def reserve(self, name: str) -> None:
        """Until `release`, nobody can join the group of this name."""
        self._groups.reserved.add(name)

    def release(self, name: str) -> None:
        self._groups.reserved.discard(name)

    def check_home(self, name: str) -> None:
        """KafkaError if this node is not, or not for sure, the subscription's home."""
        self._groups.committed(name, ())

    async def save(
        self,
        name: str,
        positions: Iterable[Position],
        *,
        topic_ids: Mapping[str, UUID],
        ttl_ms: int,
        keep_ms: int,
        terms: Mapping[TopicPartition, int] = NO_TERMS,
    ) -> list[TopicPartition]:
        """Returns when they are durable, with the partitions that are there no more: of a topic that was deleted, also
        if there is another of its name by now. A position in the one is none in the other, which would lose all before
        it.

        They are kept for `keep_ms` from now on. `topic_ids`: of the topics that the positions are in. `terms`: of the
        leader in whose log a position is, where that is to be known later."""
        offsets = tuple(
            self._offset(position, topic_ids[position.key.topic], ttl_ms, terms.get(position.key, NO_TERM))
            for position in positions
        )
        if not offsets:
            return []
        result = await self._groups.commit(
            CommitRequest(group_id=name, offsets=offsets, retention_ms=keep_ms)
        )
        gone = []
        for key, code in result.errors.items():
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                gone.append(key)
            elif code != ErrorCode.NONE:
                raise _refusal(name, key, code)
        return gone

    def _offset(self, position: Position, topic_id: UUID, ttl_ms: int, term: int) -> OffsetToCommit:
        most = self._limits.max_offset_metadata_bytes
        return OffsetToCommit(
            topic=position.key.topic,
            partition=position.key.partition,
            offset=position.offset,
            leader_epoch=term,
            metadata=encode_metadata(ttl_ms, position.offset, position.done, most),
            topic_id=topic_id,
        )

    async def forget(self, name: str) -> bool:
        """Returns when it is as if it had never been; False if it had not."""
        codes = await self._groups.delete([name])
        for code in codes.values():
            if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise KafkaError(
                    code, f"{name!r} could not be forgotten: {code.name.replace('_', ' ').lower()}"
                )
        return ErrorCode.NONE in codes.values()


def _place(key: TopicPartition, committed: CommittedOffset) -> Position:
    return Position(key, committed.offset, tuple(decode_done(committed.offset, committed.metadata)))


def _is_over(committed: CommittedOffset, now_ms: int) -> bool:
    return 0 <= committed.expire_timestamp_ms <= now_ms


def _refusal(name: str, key: TopicPartition, code: ErrorCode) -> KafkaError | Refused:
    if code in TRANSIENT:
        return KafkaError(code, f"{name!r} is coordinated elsewhere by now, or not at all")
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        return Refused("group_in_use", f"{name!r} has become a consumer group with members")
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return Refused(
            "group_in_use", f"{name!r} is a queue (a share group): a subscription needs a name of its own"
        )
    return Refused(
        code.name.lower(), f"the position in {key} was not stored: {code.name.replace('_', ' ').lower()}"
    )
