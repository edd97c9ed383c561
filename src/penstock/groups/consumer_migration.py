"""How a group with members moves from the classic protocol to the consumer protocol, and back.

*Upgrade*: the first member of the consumer protocol joins a classic group of consumers. All members become members of a
consumer group, whose group epoch, assignment epoch and target are the generation and its assignment. Those of the
classic protocol go on with it (`consumer_classic.py`).

*Downgrade*: the last member of the consumer protocol goes, and members of the classic protocol are left. They become a
classic group in which a rebalance begins.

`groups.consumer_migration_policy` allows both, one, or none. Offsets are not touched. A partition stays in the hands of
the member that has it: clients are told to join again, and give partitions up on their way.
"""

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_classic import ClassicMembers
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import ClassicFacts, ConsumerMember
from penstock.groups.consumer_shared import ConsumerShared, consumer_tombstones
from penstock.groups.consumer_targets import ASSIGNMENT
from penstock.groups.embedded_protocol import decode_assignment, decode_subscription
from penstock.groups.group import Group, Member
from penstock.groups.rebalancing import Rebalancing
from penstock.groups.shared_state import join_timer, pending_timer, session_timer, sync_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import NEVER_USED, encode_group, encode_group_key
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.values import JoinRequest, JoinResult

UPGRADES = ("upgrade", "bidirectional")
DOWNGRADES = ("downgrade", "bidirectional")


class Migration:
    """Moves groups between the protocols."""

    def __init__(self, consumers: ConsumerShared, rebalancing: Rebalancing, classic: ClassicMembers) -> None:
        self._consumers = consumers
        self._shared = consumers.shared
        self._rebalancing = rebalancing
        self._classic = classic

    # Upgrade

    def upgrade(self, now_ms: int, group: Group) -> None:
        """KafkaError if the group must stay as it is."""
        members = [self._upgraded(group, member) for member in group.members.values()]
        is_allowed = self._shared.settings.consumer_migration_policy in UPGRADES
        if not is_allowed or group.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or None in members:
            message = f"{group.group_id!r} is a group of the classic protocol that has members"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        consumer = ConsumerGroup(group.group_id)
        consumer.epoch = consumer.assignment_epoch = max(group.generation, 1)
        for member in members:
            assert member is not None
            self._take_in(now_ms, consumer, member)
        consumer.saving.mark(None, "")
        for kind, name in consumer.records():
            consumer.saving.mark(kind, name)
        consumer.topics_hash = consumer.hash_topics()
        self._end_classic(group)
        group.consumer = consumer

    def _upgraded(self, group: Group, member: Member) -> ConsumerMember | None:
        """None if what the member sent cannot be read."""
        subscription = decode_subscription(member.protocols[0].metadata)
        assigned = decode_assignment(member.assignment)
        if subscription is None or assigned is None:
            return None
        made = ConsumerMember(member.member_id, member.instance_id)
        made.client_id, made.client_host = member.client_id, member.client_host
        made.rebalance_timeout_ms = member.rebalance_timeout_ms
        made.topics = tuple(sorted(set(subscription.topics)))
        made.classic = ClassicFacts(member.session_timeout_ms, member.protocols)
        made.epoch = made.previous_epoch = max(group.generation, 1)
        ids = ((self._shared.topics.id_of(topic), index) for topic, index in assigned)
        made.assigned = {(topic_id, index): made.epoch for topic_id, index in ids if topic_id is not None}
        return made

    def _take_in(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """An assignor of clients may have given a partition to two: the first keeps it."""
        for partition in [each for each in member.assigned if each in group.owners]:
            del member.assigned[partition]
        group.add(member)
        group.targets[member.member_id] = frozenset(member.assigned)
        self._consumers.subscriptions.change(now_ms, group, member, ((), ""))
        self._consumers.touch(now_ms, group, member)

    def _end_classic(self, group: Group) -> None:
        """Open requests are answered: their clients join again."""
        error = ErrorCode.REBALANCE_IN_PROGRESS
        for member in group.members.values():
            self._shared.timers.cancel(session_timer(group, member.member_id))
            if member.join_token is not None:
                answer = JoinResult(error=error, member_id=member.member_id)
                self._shared.outbox.reply(group.end_join(member), answer)
            self._rebalancing.end_member_sync(member, error)
        for member_id in group.pending:
            self._shared.timers.cancel(pending_timer(group, member_id))
        for timer in (join_timer(group), sync_timer(group)):
            self._shared.timers.cancel(timer)
        group.pending.clear()
        group.assignment_in_flight, group.initial_remaining_ms = False, None
        group.restore(NEVER_USED)

    # Downgrade

    def downgrade_if_due(self, now_ms: int, group_id: str) -> None:
        """A member is gone."""
        group = self._shared.find(group_id)
        consumer = group.consumer if group is not None else None
        if group is None or consumer is None or not consumer.members:
            return
        is_classic = all(member.classic is not None for member in consumer.members.values())
        if is_classic and self._shared.settings.consumer_migration_policy in DOWNGRADES:
            self._downgrade(now_ms, group, consumer)

    def _downgrade(self, now_ms: int, group: Group, consumer: ConsumerGroup) -> None:
        tombstones = consumer_tombstones(consumer)
        self._consumers.refuse_waiting(consumer)
        self._consumers.subscriptions.forget(consumer)
        self._shared.timers.cancel((ASSIGNMENT, group.group_id))
        group.consumer = None
        # The epoch that the members have, not the group's, which no member has heard of: with another generation they
        # would be refused, and would give up their partitions, instead of being told to join again.
        group.generation = max(member.epoch for member in consumer.members.values())
        group.state, group.state_timestamp_ms = GroupState.STABLE, now_ms
        for member in consumer.members.values():
            self._consumers.cancel_timers(consumer, member)
            group.add(self._downgraded(group, member), CONSUMER_PROTOCOL_TYPE)
        group.protocol_name = group.choose_protocol()
        record = (encode_group_key(group.group_id), encode_group(group.stored()))
        # If this write is lost, the next coordinator finds the consumer group as it was, and downgrades it again.
        self._shared.outbox.persist([*tombstones, record], lambda now_ms, ok: None)
        for classic in group.members.values():
            self._rebalancing.touch(now_ms, group, classic)
        self._rebalancing.begin(now_ms, group)

    def _downgraded(self, group: Group, member: ConsumerMember) -> Member:
        assert member.classic is not None
        request = JoinRequest(
            group_id=group.group_id,
            member_id=member.member_id,
            new_member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=member.classic.protocols,
            session_timeout_ms=member.classic.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
        )
        made = Member(member.member_id, request)
        made.is_new = False
        made.assignment = self._classic.assignment(member)
        return made
