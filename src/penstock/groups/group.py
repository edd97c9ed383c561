"""One group: its members, their protocol and assignments, and its committed offsets.

It decides nothing about time or answers.

Invariants, cited in the tests:

1. The leader is a member, whenever there are members.
2. The generation never goes back.
3. Every instance id in `static` leads to a member with that instance id.
4. A member has an open JoinGroup only in PreparingRebalance, an open SyncGroup only in CompletingRebalance.
5. In Empty and Dead there are no members.
"""

from collections import Counter
from collections.abc import Iterable

from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.states import TRANSITIONS, GroupState
from penstock.groups.storage import StoredGroup, StoredMember
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from penstock.groups.values import CommittedOffset, JoinedMember, JoinRequest, Protocol
from penstock.types import TopicPartition


class Member:
    """A member. `join_token` and `sync_token` are the requests it waits for, if any."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(self, member_id: str, request: JoinRequest) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.assignment = b""
        self.join_token: object | None = None
        self.sync_token: object | None = None
        self.is_new = True
        """The member is not part of any generation yet: its session has not begun."""
        self.take_over(request)

    def take_over(self, request: JoinRequest) -> None:
        """Takes over what a JoinGroup says about the member."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = (
            request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms
        )

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    @property
    def protocol_names(self) -> set[str]:
        return {protocol.name for protocol in self.protocols}

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for one protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: list[str]) -> str:
        """The protocol that the member prefers among those that all members support."""
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)


class Group:
    """One group's state."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        """Kept after the last member has left. None: the group was only ever used for its offsets."""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.metadata_bytes = 0
        """The size of all members' metadata. It is kept up to date like the next two fields: a rebalance of n members
        must not cost n squared."""
        self.waiting_to_join = 0
        self._protocol_counts: Counter[str] = Counter()
        self.static: dict[str, str] = {}
        self.pending: set[str] = set()
        """Ids that were given out with MEMBER_ID_REQUIRED and not joined with yet."""
        self.pending_sync: set[str] = set()
        """Members of this generation whose SyncGroup has not come yet."""
        self.initial_remaining_ms: int | None = None
        """How much longer the first rebalance of an empty group may be delayed for more members."""
        self.new_member_added = False
        self.assignment_in_flight = False
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.offsets_in_flight: dict[TopicPartition, int] = {}
        """How many commits of each partition are being written."""
        self.pending_offsets: dict[TopicPartition, dict[int, CommittedOffset]] = {}
        """Offsets of open transactions by producer id, in the order of the log. Only `OpenTransactions` changes it."""
        self.pending_count = 0
        """How many these are."""
        self.pending_in_flight: dict[TopicPartition, int] = {}
        """How many transactional commits of each partition are being written."""
        self.consumer: ConsumerGroup | None = None
        """The members, if they use the protocol of KIP-848. The fields above about members are as of an empty group
        then."""

    def move_to(self, state: GroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_timestamp_ms = now_ms

    def can_move_to(self, state: GroupState) -> bool:
        return state in TRANSITIONS[self.state]

    @property
    def is_idle(self) -> bool:
        """There are no members, no offsets, and no writes under way."""
        return self.is_empty and not (self.offsets or self.is_undecided or self.pending)

    @property
    def is_empty(self) -> bool:
        """There are no members of either protocol."""
        return self.state is GroupState.EMPTY and not (self.consumer is not None and self.consumer.members)

    @property
    def shown_state(self) -> GroupState:
        """The state of the protocol that the members use."""
        return self.state if self.consumer is None else self.consumer.state

    @property
    def member_count(self) -> int:
        return len(self.members) if self.consumer is None else len(self.consumer.members)

    @property
    def is_undecided(self) -> bool:
        """Some commit is being written, or is part of an open transaction."""
        return bool(self.offsets_in_flight or self.pending_in_flight or self.pending_offsets)

    def is_unstable(self, partition: TopicPartition) -> bool:
        """A transaction has an offset of this partition: it is not known yet where the group goes on."""
        return partition in self.pending_offsets or partition in self.pending_in_flight

    def is_at_rest(self, partition: TopicPartition) -> bool:
        """Nothing is under way that may change the offset of this partition."""
        return partition not in self.offsets_in_flight and not self.is_unstable(partition)

    # Members

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        assert not member.is_waiting, "an open request would never be answered"
        del self.members[member.member_id]
        self._count(member, -1)
        self.pending_sync.discard(member.member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, request: JoinRequest) -> None:
        self._count(member, -1)
        member.take_over(request)
        self._count(member, 1)

    def wait_for_join(self, member: Member, token: object) -> None:
        assert member.join_token is None
        member.join_token = token
        self.waiting_to_join += 1

    def end_join(self, member: Member) -> object:
        """Removes and returns the token of the member's open JoinGroup."""
        assert member.join_token is not None
        token, member.join_token = member.join_token, None
        self.waiting_to_join -= 1
        return token

    def rename(self, member: Member, new_id: str) -> None:
        """A static member came back under another id: it keeps its position, its assignment and, if it was the leader,
        its leadership."""
        assert member.instance_id is not None
        old_id, member.member_id = member.member_id, new_id
        # Rebuilt rather than popped and added, so that the members keep their order.
        self.members = {each.member_id: each for each in self.members.values()}
        self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)

    @property
    def all_joined(self) -> bool:
        return not self.pending and self.waiting_to_join == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one of the members that joined. False if no member joined."""
        if self.leader is not None and self.members[self.leader].join_token is not None:
            return True
        joined = (member.member_id for member in self.members.values() if member.join_token is not None)
        candidate = next(joined, None)
        if candidate is None:
            return False
        self.leader = candidate
        return True

    # Protocols

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols could take part."""
        if not self.members:
            return bool(protocol_type and protocols)
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._protocol_counts[protocol.name] == everybody for protocol in protocols
        )

    def choose_protocol(self) -> str:
        """The protocol with most votes; with equal votes, the one that the leader prefers."""
        assert self.leader is not None
        common = self._common_protocols()
        votes = [member.vote(common) for member in self.members.values()]
        order = [protocol.name for protocol in self.members[self.leader].protocols]
        return max(common, key=lambda name: (votes.count(name), -order.index(name)))

    def _common_protocols(self) -> list[str]:
        """The protocols that every member supports. Never empty: a member that shares no protocol with the others is
        refused."""
        return [name for name, count in self._protocol_counts.items() if count == len(self.members)]

    def _count(self, member: Member, sign: int) -> None:
        self.metadata_bytes += sign * metadata_size(member.protocols)
        for name in member.protocol_names:
            self._protocol_counts[name] += sign
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members read, if they are consumers with readable metadata."""
        if self.consumer is not None:
            return frozenset(self.consumer.names)
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def wanted_topics(self) -> frozenset[str]:
        """All topics that any member names, in any protocol that it offers. They are known before a protocol is chosen,
        and so also during a rebalance."""
        if self.consumer is not None:
            return frozenset(self.consumer.names)
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return frozenset()
        offers = (protocol.metadata for member in self.members.values() for protocol in member.protocols)
        return frozenset(topic for metadata in offers for topic in subscribed_topics(metadata) or ())

    # Storage

    def stored(self, assignments: dict[str, bytes] | None = None) -> StoredGroup:
        """The generation as it is to be stored, with the members' own assignments or the ones given."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.leader,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(self._stored_members(assignments)),
        )

    def _stored_members(self, assignments: dict[str, bytes] | None) -> Iterable[StoredMember]:
        for member in self.members.values():
            assignment = member.assignment if assignments is None else assignments[member.member_id]
            yield StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=assignment,
            )

    def restore(self, stored: StoredGroup) -> None:
        """Takes over the stored generation; offsets stay."""
        self.protocol_type = stored.protocol_type or None
        self.generation = stored.generation
        self.protocol_name = stored.protocol_name
        self.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        self.state_timestamp_ms = stored.state_timestamp_ms
        for member in list(self.members.values()):
            self.remove(member)
        for each in stored.members:
            self.add(_restored_member(each, stored), stored.protocol_type)
        self.leader = stored.leader


def metadata_size(protocols: Iterable[Protocol]) -> int:
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


def _restored_member(stored: StoredMember, group: StoredGroup) -> Member:
    request = JoinRequest(
        group_id="",
        member_id=stored.member_id,
        new_member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        protocol_type=group.protocol_type,
        protocols=(Protocol(group.protocol_name or "", stored.subscription),),
        session_timeout_ms=stored.session_timeout_ms,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
    )
    member = Member(stored.member_id, request)
    member.is_new = False
    member.assignment = stored.assignment
    return member
