"""Which offsets a member of a consumer group (KIP-848) may commit and fetch.

A member commits with its epoch. It may have an older epoch in mind: its epoch rises with a heartbeat, and the commit
was under way. By KIP-1251 such a commit counts for the partitions that the member has had since then without a break.
Any other member may have committed the partition meanwhile, so its offset is refused.
"""

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import ConsumerMember
from penstock.groups.topics import Topics
from penstock.groups.values import NO_GENERATION, NO_MEMBER, CommitRequest, OffsetToCommit
from penstock.types import TopicPartition


def stale_partitions(group: ConsumerGroup, request: CommitRequest, topics: Topics) -> set[TopicPartition]:
    """The partitions whose offsets are refused; KafkaError if all are."""
    epoch = request.generation
    if epoch <= NO_GENERATION:
        if not group.members:
            return set()
        anonymous = request.member_id == NO_MEMBER and request.instance_id is None
        if anonymous and request.producer is not None:
            return set()
    member = _known(group, request.member_id, request.instance_id)
    if member.classic is not None:
        _check_generation(group, member, epoch)
    if epoch == member.epoch:
        return set()
    if epoch > member.epoch:
        raise _stale(group, member, epoch)
    return {
        TopicPartition(each.topic, each.partition)
        for each in request.offsets
        if not _has_had(member, each, epoch, topics)
    }


def _has_had(member: ConsumerMember, offset: OffsetToCommit, epoch: int, topics: Topics) -> bool:
    topic_id = offset.topic_id or topics.id_of(offset.topic)
    if topic_id is None:
        return False
    partition = topic_id, offset.partition
    since = member.assigned.get(partition, member.revoking.get(partition))
    return since is not None and since <= epoch


def check_fetch(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    """A member that has lost its partitions must not begin at offsets that others have committed since."""
    member = _known(group, member_id, None)
    if member.classic is not None:
        _check_generation(group, member, epoch)
    elif epoch != member.epoch:
        raise _stale(group, member, epoch)


def _check_generation(group: ConsumerGroup, member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        message = f"{group.group_id}: {member.member_id!r} is in generation {member.epoch}, not {generation}"
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)


def _known(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None and group.static.get(instance_id, member_id) != member_id:
        message = f"{group.group_id}: instance {instance_id!r} is another member now"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id}: no member {member_id!r}")
    return member


def _stale(group: ConsumerGroup, member: ConsumerMember, epoch: int) -> KafkaError:
    message = f"{group.group_id}: {member.member_id!r} has epoch {member.epoch}, not {epoch}"
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, message)
