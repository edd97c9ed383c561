"""A harness for groups: clients that behave like real ones, a clock that tests advance, and a
disk that is prompt, slow or full."""

import itertools
import struct
from collections.abc import Iterator, Sequence
from uuid import UUID

from penstock.config import GroupSettings, Limits
from penstock.effects import Effect, Persist, Reply
from penstock.errors import ErrorCode
from penstock.groups import (
    CommitRequest,
    CommitResult,
    CommittedOffset,
    Coordinator,
    GroupDescription,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Result,
    SyncRequest,
    SyncResult,
)
from penstock.groups.storage import OffsetKey, decode_key, decode_offset
from penstock.types import TopicPartition

GROUP = "billing"
PROMPT = GroupSettings(initial_rebalance_delay_ms=0)
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DAY_MS = 86_400_000


def subscription(*topics: str, extra: bytes = b"") -> bytes:
    """A consumer's subscription: version 0, its topics, no user data."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", len(extra)) + extra


class Metadata:
    """Known topics. A name exists from the first lookup on, until it is deleted."""

    def __init__(self) -> None:
        self.version = 1
        self._ids: dict[str, UUID | None] = {}
        self._numbers = itertools.count(1)

    def id_of(self, name: str) -> UUID | None:
        if name not in self._ids:
            self.creates(name)
        return self._ids[name]

    def creates(self, name: str) -> None:
        self._ids[name] = UUID(int=next(self._numbers))
        self.version += 1

    def deletes(self, name: str) -> None:
        self._ids[name] = None
        self.version += 1

    def recreates(self, name: str) -> None:
        self.deletes(name)
        self.creates(name)


class GroupHarness:
    """One coordinator, its disk, its clock, and its topics."""

    def __init__(
        self,
        settings: GroupSettings = PROMPT,
        limits: Limits | None = None,
        now_ms: int = 1_000_000,
        metadata: Metadata | None = None,
    ) -> None:
        self.settings = settings
        self.limits = limits or Limits()
        self.metadata = metadata or Metadata()
        self.coordinator = Coordinator(self.metadata, settings, self.limits)
        self.now_ms = now_ms
        self.replies: dict[int, Result] = {}
        self.open_tokens: set[int] = set()
        self.durable: list[tuple[bytes, bytes | None]] = []
        self.in_flight: list[Persist] = []
        self.disk = "prompt"
        self.clients: list[Client] = []
        self._tokens: Iterator[int] = itertools.count(1)
        self._ids: Iterator[int] = itertools.count(1)

    def client(self, name: str, **about: object) -> "Client":
        client = Client(self, name, **about)  # type: ignore[arg-type]
        self.clients.append(client)
        return client

    def new_token(self) -> int:
        token = next(self._tokens)
        self.open_tokens.add(token)
        return token

    def new_id(self, name: str) -> str:
        return f"{name}-{next(self._ids)}"

    def happens(self, effects: list[Effect]) -> None:
        self._collect(effects)
        if self.disk != "slow":
            self.flush()

    def flush(self, writes: int | None = None) -> None:
        """The disk completes its pending writes in order; a full one fails them."""
        ok = self.disk != "full"
        while self.in_flight and writes != 0:
            writes = None if writes is None else writes - 1
            persist = self.in_flight.pop(0)
            if ok:
                self.stores(persist)
            self._collect(self.coordinator.persisted(self.now_ms, persist.id, ok))

    def sets_off(self, persist: Persist) -> None:
        self.in_flight.append(persist)

    def stores(self, persist: Persist) -> None:
        assert persist.producer is None
        self.durable += persist.records

    def _collect(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.sets_off(effect)
                continue
            assert isinstance(effect, Reply)
            assert isinstance(effect.token, int)
            assert effect.token in self.open_tokens, "answered twice, or never asked"
            self.open_tokens.remove(effect.token)
            assert isinstance(effect.result, Result)
            self.replies[effect.token] = effect.result
            for client in self.clients:
                client.hears(effect.token, effect.result)

    def passes(self, duration_ms: int) -> None:
        """Advances the clock, with a tick at every deadline."""
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.coordinator.next_deadline_ms) is not None and deadline_ms <= end_ms:
            assert deadline_ms >= self.now_ms, "a deadline that was not dealt with"
            self.now_ms = max(self.now_ms, deadline_ms)
            self.happens(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    def restarted(self) -> "GroupHarness":
        """A new coordinator after a crash: it has only the durable records."""
        harness = GroupHarness(self.settings, self.limits, self.now_ms, self.metadata)
        for key, value in self.durable:
            harness.coordinator.replay(key, value)
        assert harness.coordinator.topics_version <= self.metadata.version
        harness.durable = list(self.durable)
        harness.happens(harness.coordinator.loaded(harness.now_ms))
        harness._ids = self._ids
        return harness

    def tidies(self) -> None:
        self.coordinator._offsets.tidy()
        self.happens(self.coordinator._shared.outbox.take())

    def stored(self, group_id: str = GROUP) -> dict[TopicPartition, CommittedOffset]:
        """The group's offsets on the disk, whether or not they are valid."""
        last = {decode_key(key): value for key, value in self.durable}
        return {
            key.topic_partition: decode_offset(value)
            for key, value in last.items()
            if isinstance(key, OffsetKey) and key.group_id == group_id and value is not None
        }

    def group(self, group_id: str = GROUP) -> GroupDescription:
        description = self.coordinator.describe(group_id)
        assert description is not None
        return description

    def offsets(self, group_id: str = GROUP) -> dict[TopicPartition, CommittedOffset]:
        return self.coordinator.fetch_offsets(group_id)

    def state(self) -> dict[str, object]:
        """All state that is visible to clients."""
        names = sorted(listing.group_id for listing in self.coordinator.list_groups())
        return {name: (self.group(name), self.offsets(name)) for name in names}

    # Requests of operators rather than of members

    def deletes_groups(self, *group_ids: str) -> Result | None:
        token = self.new_token()
        self.happens(self.coordinator.delete_groups(self.now_ms, token, group_ids))
        return self.replies.get(token)

    def deletes_offsets(self, *partitions: TopicPartition, group_id: str = GROUP) -> Result | None:
        token = self.new_token()
        self.happens(self.coordinator.delete_offsets(self.now_ms, token, group_id, partitions))
        return self.replies.get(token)

    def deletes_topics(self, *topics: str) -> None:
        for topic in topics:
            self.metadata.deletes(topic)
        self.hears_of_deleted(*topics)

    def hears_of_deleted(self, *topics: str) -> None:
        self.happens(self.coordinator.topics_deleted(self.now_ms, topics))

    def removes_members(self, *members: LeavingMember, group_id: str = GROUP) -> LeaveResult:
        token = self.new_token()
        self.happens(self.coordinator.leave(self.now_ms, token, group_id, members))
        result = self.replies[token]
        assert isinstance(result, LeaveResult)
        return result


class Client:
    """A consumer. It keeps its member id, its generation and its leader from the responses."""

    def __init__(
        self,
        harness: GroupHarness,
        name: str,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        topics: Sequence[str] = ("orders",),
        protocols: Sequence[str] = ("range",),
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> None:
        self.harness = harness
        self.name = name
        self.group_id = group_id
        self.instance_id = instance_id
        self.protocols = tuple(Protocol(protocol, subscription(*topics)) for protocol in protocols)
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.token = 0
        self._joined: JoinResult | None = None

    def asks_to_join(self, **changes: object) -> "Client":
        """One JoinGroup."""
        fields: dict[str, object] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "new_member_id": self.harness.new_id(self.name),
            "instance_id": self.instance_id,
            "client_id": self.name,
            "client_host": "127.0.0.1",
            "protocol_type": "consumer",
            "protocols": self.protocols,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.rebalance_ms,
            "requires_known_member_id": self.version >= 4,
            "supports_skip_assignment": self.version >= 9,
            **changes,
        }
        request = JoinRequest(**fields)  # type: ignore[arg-type]
        self.harness.happens(self.harness.coordinator.join(self.harness.now_ms, self._new_token(), request))
        return self

    def joins(self, **changes: object) -> "Client":
        """JoinGroup as a client does it: repeated with the assigned id."""
        self.asks_to_join(**changes)
        if self.is_answered and self.joined.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.asks_to_join(**changes)
        return self

    def syncs(self, assignments: dict[str, bytes] | None = None, **changes: object) -> "Client":
        fields: dict[str, object] = {
            "group_id": self.group_id,
            "generation": self.generation,
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "assignments": assignments or {},
            **changes,
        }
        request = SyncRequest(**fields)  # type: ignore[arg-type]
        self.harness.happens(self.harness.coordinator.sync(self.harness.now_ms, self._new_token(), request))
        return self

    def assigns(self, **shares: bytes) -> "Client":
        """SyncGroup as the leader does it: `alice=b"0,1"` by the members' names."""
        members = [member.member_id for member in self.joined.members]
        by_name = {member_id.rpartition("-")[0]: member_id for member_id in members}
        return self.syncs({by_name[name]: share for name, share in shares.items()})

    def heartbeats(self) -> ErrorCode:
        return self.harness.coordinator.heartbeat(
            self.harness.now_ms, self.group_id, self.member_id, self.generation, self.instance_id
        )

    def leaves(self) -> ErrorCode:
        leaving = LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
        result = self.harness.removes_members(leaving, group_id=self.group_id)
        return result.error or result.members[0].error

    def commits(
        self, topic: str = "orders", partition: int = 0, offset: int = 1, **changes: object
    ) -> "Client":
        one = OffsetToCommit(topic=topic, partition=partition, offset=offset)
        fields: dict[str, object] = {
            "group_id": self.group_id,
            "generation": self.generation,
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "offsets": (one,),
            **changes,
        }
        request = CommitRequest(**fields)  # type: ignore[arg-type]
        self.harness.happens(
            self.harness.coordinator.commit_offsets(self.harness.now_ms, self._new_token(), request)
        )
        return self

    # Responses to the client

    @property
    def is_answered(self) -> bool:
        return self.token in self.harness.replies

    @property
    def joined(self) -> JoinResult:
        """The last JoinGroup response."""
        assert self._joined is not None
        return self._joined

    @property
    def error(self) -> ErrorCode:
        """The error of the last response; for a commit that of its one partition."""
        result = self.harness.replies[self.token]
        if isinstance(result, CommitResult):
            (error,) = result.errors.values()
            return error
        assert isinstance(result, JoinResult | SyncResult)
        return result.error

    @property
    def assignment(self) -> bytes:
        result = self.harness.replies[self.token]
        assert isinstance(result, SyncResult)
        assert result.error is ErrorCode.NONE
        return result.assignment

    @property
    def is_leader(self) -> bool:
        return self.joined.leader == self.member_id

    def forgets(self) -> "Client":
        """The process restarts: it has no member id, but its instance id is in its configuration."""
        self.member_id, self.generation = "", -1
        return self

    def _new_token(self) -> int:
        self.token = self.harness.new_token()
        return self.token

    def hears(self, token: int, result: Result) -> None:
        if token != self.token or not isinstance(result, JoinResult):
            return
        self._joined = result
        if result.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = result.member_id
        if result.error is ErrorCode.NONE:
            self.generation = result.generation


def stable(harness: GroupHarness, *clients: Client) -> None:
    """All of them join, the leader gives each a share named after it, all sync."""
    for client in clients:
        client.joins()
    rejoin(*clients)


def rejoin(*clients: Client) -> None:
    """Clients with an older generation join again, until all are in the newest; then they sync."""
    for _ in range(3):
        newest = max(client.joined.generation for client in clients if client.is_answered)
        late = [client for client in clients if client.is_answered and client.joined.generation < newest]
        waiting = [client for client in clients if not client.is_answered]
        if not late and not waiting:
            break
        for client in [client for client in clients if client.is_answered]:
            client.joins()
    leader = next(client for client in clients if client.is_leader)
    leader.assigns(**{client.name: client.name.encode() for client in clients})
    for client in clients:
        if client is not leader:
            client.syncs()
