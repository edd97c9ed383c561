"""Stores subscriptions as the committed offsets of the group of their name, so every Kafka tool shows their lag.

A subscription has no members, so Kafka's own rules for groups are enough: a client that is not a member may commit
while there are none, and an offset that was committed with a retention of its own is deleted when that is over. The
retention is the subscription's TTL, renewed while a subscriber is attached. So no other code has to watch the TTL, and
it survives failovers.
"""

from collections.abc import Iterable, Mapping
from uuid import UUID

from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, CommittedOffset, OffsetToCommit
from penstock.node.calls.retry import NO_COORDINATOR
from penstock.node.coordination.group_manager import GroupManager
from penstock.node.scheduling.clock import Clock
from penstock.node.subscriptions.values import SubscribeRefused
from penstock.queue.subscription import Position
from penstock.queue.subscription_metadata import decode_done, encode_metadata, is_subscription
from penstock.types import NO_TERM, TopicPartition

NO_TERMS: Mapping[TopicPartition, int] = {}

GROUP_TYPES = ("classic", "consumer")
"""Kafka's types for groups without members: of one that never had any, and of one whose members used KIP-848."""


class SubscriptionStore:
    """Reads and writes subscriptions. This node must coordinate their groups."""

    def __init__(self, groups: GroupManager, clock: Clock, limits: Limits) -> None:
        self._groups = groups
        self._clock = clock
        self._limits = limits

    def load(self, name: str) -> dict[TopicPartition, Position]:
        """The stored positions, in all topics that it ever read; none if it is new, or its TTL is over. KafkaError if
        this node does not coordinate it; SubscribeRefused if the name is a consumer group's that has members."""
        committed = self._groups.committed(name)
        self._check_unused(name)
        now_ms = self._clock.wall_ms()
        return {key: _position(key, one) for key, one in committed.items() if not _is_over(one, now_ms)}

    def terms(self, name: str) -> dict[TopicPartition, int]:
        """The term of the leader in whose log each position was when it was stored; -1 if it was stored without a
        term."""
        return {key: one.leader_epoch for key, one in self._groups.committed(name).items()}

    def stored(self, name: str) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets under this name with a subscription's metadata. KafkaError if this node does not
        coordinate it."""
        now_ms = self._clock.wall_ms()
        return {
            key: one
            for key, one in self._groups.committed(name).items()
            if is_subscription(one.metadata) and not _is_over(one, now_ms)
        }

    def names(self) -> list[str]:
        """All groups here that may be subscriptions. KafkaError while not all of them are loaded."""
        if not self._groups.cores.all_online:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a coordinator is reading its log")
        return [row.group_id for row in self._groups.list((), GROUP_TYPES)]

    def _check_unused(self, name: str) -> None:
        members = self._groups.member_count(name)
        if members:
            message = (
                f"{name!r} is a consumer group with {members} members: choose another name for "
                "the subscription, or end these members first"
            )
            raise SubscribeRefused("group_in_use", message)

    def reserve(self, name: str) -> None:
        """Until `release`, no consumer can join the group of this name."""
        self._groups.reserved.add(name)

    def release(self, name: str) -> None:
        self._groups.reserved.discard(name)

    def check_coordinator(self, name: str) -> None:
        """KafkaError if this node is not the coordinator of the subscription, or cannot be sure."""
        self._groups.committed(name, ())

    async def save(
        self,
        name: str,
        positions: Iterable[Position],
        *,
        topic_ids: Mapping[str, UUID],
        ttl_ms: int,
        retention_ms: int,
        terms: Mapping[TopicPartition, int] = NO_TERMS,
    ) -> list[TopicPartition]:
        """Returns when the positions are durable, with the partitions that no longer exist: those of a deleted topic,
        also if another topic has its name by now. A position of the old topic is not valid in the new one: it would
        skip all records before it.

        They are kept for `retention_ms` from now on. `topic_ids`: of the topics of the positions. `terms`: of the
        leaders in whose logs the positions are, where they will be compared later."""
        offsets = tuple(
            self._offset(position, topic_ids[position.key.topic], ttl_ms, terms.get(position.key, NO_TERM))
            for position in positions
        )
        if not offsets:
            return []
        result = await self._groups.commit(
            CommitRequest(group_id=name, offsets=offsets, retention_ms=retention_ms)
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
        """Returns when the subscription is deleted; False if there was none."""
        codes = await self._groups.delete([name])
        for code in codes.values():
            if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise KafkaError(
                    code, f"{name!r} could not be deleted: {code.name.replace('_', ' ').lower()}"
                )
        return ErrorCode.NONE in codes.values()


def _position(key: TopicPartition, committed: CommittedOffset) -> Position:
    return Position(key, committed.offset, tuple(decode_done(committed.offset, committed.metadata)))


def _is_over(committed: CommittedOffset, now_ms: int) -> bool:
    return 0 <= committed.expire_timestamp_ms <= now_ms


def _refusal(name: str, key: TopicPartition, code: ErrorCode) -> KafkaError | SubscribeRefused:
    if code in NO_COORDINATOR:
        return KafkaError(code, f"{name!r} is coordinated elsewhere by now, or not at all")
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        return SubscribeRefused("group_in_use", f"{name!r} has become a consumer group with members")
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return SubscribeRefused(
            "group_in_use", f"{name!r} is a queue (a share group): choose another name for the subscription"
        )
    return SubscribeRefused(
        code.name.lower(), f"the position in {key} was not stored: {code.name.replace('_', ' ').lower()}"
    )
