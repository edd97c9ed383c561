"""State and steps that all parts of the coordinator of consumer groups share: how a group is found and stored, and how
a member goes towards its target or is removed."""

from penstock.config import ConsumerGroupConfig, resolve_consumer_group
from penstock.effects import KeyValue
from penstock.errors import ErrorCode
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import ConsumerMember, reconcile
from penstock.groups.consumer_saving import Mark, Waiting
from penstock.groups.consumer_storage import (
    RecordKind,
    encode_consumer_key,
    encode_current,
    encode_epoch,
    encode_member,
    encode_pattern,
    encode_target,
)
from penstock.groups.consumer_subscriptions import Subscriptions
from penstock.groups.consumer_targets import Targets
from penstock.groups.consumer_values import NOTHING, Assignment, ConsumerCluster, MemberState
from penstock.groups.shared_state import SharedState
from penstock.groups.storage import encode_group_key

SESSION = "consumer"
REVOCATION = "revocation"
REJOIN = "rejoin"
"""The kinds of the timers of members."""


class ConsumerShared:
    """All consumer groups of one coordinator."""

    def __init__(self, shared: SharedState, cluster: ConsumerCluster) -> None:
        self.shared = shared
        self.cluster = cluster
        self.subscriptions = Subscriptions(shared, cluster)
        self.targets = Targets(shared, self.config)
        self._usual = shared.settings.consumer

    def find(self, group_id: str) -> ConsumerGroup | None:
        group = self.shared.find(group_id)
        return None if group is None else group.consumer

    def config(self, group_id: str) -> ConsumerGroupConfig:
        overrides = self.cluster.overrides(group_id)
        return resolve_consumer_group(overrides, self._usual) if overrides else self._usual

    # Members

    def touch(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A request came from the member: its session begins again."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self.config(group.group_id).session_timeout_ms
        self.shared.timers.set((SESSION, group.group_id, member.member_id), now_ms + timeout_ms)

    def advance(
        self, now_ms: int, group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None
    ) -> None:
        """The member goes as far towards its target as it can now."""
        target = group.targets.get(member.member_id, NOTHING)
        before, state, me = member.held, member.state, member.member_id
        if not reconcile(
            member, target, group.assignment_epoch, owned, lambda each: group.owners.get(each, me) == me
        ):
            return
        for partition in before - member.held:
            del group.owners[partition]
        group.own(member)
        group.mark_current(member)
        timer = (REVOCATION, group.group_id, me)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self.shared.timers.cancel(timer)
        elif state is not MemberState.UNREVOKED_PARTITIONS:
            self.shared.timers.set(timer, now_ms + max(member.rebalance_timeout_ms, 0))

    def cancel_timers(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """No timer may be left of a member that is gone, goes by another id, or begins again."""
        for kind in (SESSION, REVOCATION, REJOIN):
            self.shared.timers.cancel((kind, group.group_id, member.member_id))

    def remove(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        """The member has left, or was silent for too long."""
        self.cancel_timers(group, member)
        group.remove(member)
        self.subscriptions.drop(group, member)
        group.bump()
        self.targets.compute_if_due(now_ms, group)

    def replace(self, group: ConsumerGroup, member: ConsumerMember, new_id: str) -> None:
        """A static member is back: it keeps its assignment, so that the others do not notice its restart."""
        assert member.instance_id is not None
        old_id = member.member_id
        target = group.targets.get(old_id)
        self.cancel_timers(group, member)
        group.remove(member)
        assigned = member.assigned
        member.start_over()
        member.member_id, member.assigned, member.told = new_id, assigned, NOTHING
        group.add(member)
        if target is not None:
            group.targets[new_id] = target
            group.mark(RecordKind.TARGET, new_id)

    # The disk

    def answer(
        self, group: ConsumerGroup, member: ConsumerMember, token: object, result: object, refusal: object
    ) -> None:
        """Answers once everything that the member could learn from it is durable."""
        if group.saving.is_durable(member.change):
            self.shared.outbox.reply(token, result)
        else:
            group.saving.wait(Waiting(member.change, token, result, refusal, member))
        self.save(group)

    def save(self, group: ConsumerGroup) -> None:
        marks = group.saving.begin()
        if not marks:
            return

        def saved(_now_ms: int, ok: bool) -> None:
            for waiting in group.saving.end(ok):
                self._end(waiting, ok)
            if ok:  # else with the next request: a disk that is full would be asked again and again
                self.save(group)

        self.shared.outbox.persist([self._record(group, mark) for mark in marks], saved)

    def refuse_waiting(self, group: ConsumerGroup) -> None:
        """The group is not a consumer group any more."""
        for waiting in group.saving.give_up():
            self._end(waiting, False)

    def _end(self, waiting: Waiting, ok: bool) -> None:
        if not ok:
            waiting.member.told = None  # the next answer is complete
        self.shared.outbox.reply(waiting.token, waiting.result if ok else waiting.refusal)

    def _record(self, group: ConsumerGroup, mark: Mark) -> KeyValue:
        kind, name = mark
        if kind is None:
            return encode_group_key(group.group_id), None
        return encode_consumer_key(kind, group.group_id, name), self._value(group, kind, name)

    def _value(self, group: ConsumerGroup, kind: RecordKind, name: str) -> bytes | None:
        if kind is RecordKind.GROUP:
            return encode_epoch(group.epoch, group.topics_hash)
        if kind is RecordKind.TARGET_EPOCH:
            return encode_epoch(group.assignment_epoch, group.assigned_ms or 0)
        if kind is RecordKind.PATTERN:
            pattern = group.patterns.get(name)
            version = self.shared.topics.version
            return None if pattern is None else encode_pattern(pattern.topics, version, pattern.found_ms)
        member = group.members.get(name)
        if member is None:
            return None
        if kind is RecordKind.TARGET:
            return encode_target(group.targets.get(name, NOTHING))
        return encode_member(member) if kind is RecordKind.MEMBER else encode_current(member)


def consumer_tombstones(group: ConsumerGroup) -> list[KeyValue]:
    """Deletes the group: nothing is written for it any more."""
    marks: dict[Mark, None] = dict.fromkeys(group.records())
    marks |= dict.fromkeys(group.saving.freeze())
    keys = (encode_consumer_key(kind, group.group_id, name) for kind, name in marks if kind is not None)
    return [(key, None) for key in keys]


UNSAVED = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""The error of an answer whose changes could not be stored: the client asks again."""
