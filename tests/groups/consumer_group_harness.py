"""A harness for groups of the consumer protocol (KIP-848): members that behave like real clients."""

from uuid import UUID

from penstock.config import GroupSettings, Limits
from penstock.effects import Effect, Send
from penstock.errors import ErrorCode
from penstock.groups import (
    AssignmentJob,
    CommitRequest,
    CommitResult,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Coordinator,
    OffsetToCommit,
    compute_assignment,
)
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_values import NOTHING, Assignment
from penstock.types import Caller
from tests.groups.group_harness import GROUP, GroupHarness, Metadata
from tests.groups.share_group_harness import Cluster

PROMPT = GroupSettings(consumer_assignment_interval_ms=0)
"""Every change is followed by a computation at once."""
SESSION_MS = 45_000
REBALANCE_MS = 60_000


class ConsumerMetadata(Metadata):
    """The topics of a cluster, as committed offsets see them."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def id_of(self, name: str) -> UUID | None:
        topic = self._cluster.topics.get(name)
        return None if topic is None else topic.topic_id


class ConsumerHarness(GroupHarness):
    """One coordinator with a cluster around it, which has a topic `orders` of four partitions."""

    def __init__(
        self,
        settings: GroupSettings = PROMPT,
        limits: Limits | None = None,
        now_ms: int = 1_000_000,
        cluster: Cluster | None = None,
    ) -> None:
        self.cluster = cluster or Cluster()
        if cluster is None:
            self.cluster.puts("orders", 4)
        super().__init__(settings, limits, now_ms, ConsumerMetadata(self.cluster))
        self.coordinator = Coordinator(self.metadata, self.settings, self.limits, self.cluster)
        self.jobs: list[AssignmentJob] = []
        """Computations that the host has not done yet."""

    def _collect(self, effects: list[Effect]) -> None:
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        self.jobs += [job for job in sent if isinstance(job, AssignmentJob)]
        super()._collect([effect for effect in effects if not isinstance(effect, Send)])

    def computes(self) -> None:
        """The host completes its computations."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            target = compute_assignment(job)
            effects = self.coordinator.assignment_computed(self.now_ms, job.group_id, job.epoch, target)
            self.happens(effects)

    def member(self, name: str, *topics: str, **about: object) -> "ConsumerClient":
        return ConsumerClient(self, name, topics or ("orders",), **about)  # type: ignore[arg-type]

    def puts(self, name: str, partitions: int) -> None:
        self.cluster.puts(name, partitions)
        self.happens(self.coordinator.topics_changed(self.now_ms, [name]))

    def drops(self, name: str) -> None:
        del self.cluster.topics[name]
        self.happens(self.coordinator.topics_changed(self.now_ms, [name]))

    def consumer_group(self, group_id: str = GROUP) -> ConsumerGroupDescription:
        description = self.coordinator.describe_consumer_group(group_id)
        assert description is not None
        return description

    def inner(self, group_id: str = GROUP) -> ConsumerGroup | None:
        group = self.coordinator._shared.find(group_id)
        return None if group is None else group.consumer

    def epochs(self) -> dict[str, int]:
        return {member.member_id: member.member_epoch for member in self.consumer_group().members}

    def restarted(self) -> "ConsumerHarness":
        harness = ConsumerHarness(self.settings, self.limits, self.now_ms, self.cluster)
        for key, value in self.durable:
            harness.coordinator.replay(key, value)
        harness.durable = list(self.durable)
        harness.happens(harness.coordinator.loaded(harness.now_ms))
        harness._tokens = self._tokens
        return harness

    def of(self, topic: str, *indexes: int) -> Assignment:
        return frozenset((self.cluster.topics[topic].topic_id, index) for index in indexes)


class ConsumerClient:
    """A consumer: keeps its epoch, and takes over and confirms every assignment at once unless it is `busy`."""

    def __init__(
        self,
        harness: ConsumerHarness,
        name: str,
        topics: tuple[str, ...],
        *,
        group_id: str = GROUP,
        instance: str | None = None,
        pattern: str | None = None,
        assignor: str | None = None,
        client_id: str = "",
        member_id: str | None = None,
    ) -> None:
        self.harness = harness
        self.member_id = member_id or name
        self.topics = topics
        self.group_id = group_id
        self.instance = instance
        self.pattern = pattern
        self.assignor = assignor
        self.client_id = client_id
        self.epoch = 0
        self.target: Assignment = NOTHING
        """The assignment of its last answer."""
        self.owned: Assignment = NOTHING
        self.busy = False
        self._told: tuple[object, ...] | None = None
        """What the coordinator has confirmed to know; None: the next request is complete."""

    def sends(self, epoch: int, /, **fields: object) -> ConsumerHeartbeatResult | None:
        """A heartbeat whose response is not heard; None while there is none."""
        token = self.harness.new_token()
        about = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.instance,
            "caller": Caller(client_id=self.client_id),
        }
        request = ConsumerHeartbeat(**{**about, **fields})  # type: ignore[arg-type]
        self.harness.happens(self.harness.coordinator.consumer_heartbeat(self.harness.now_ms, token, request))
        result = self.harness.replies.get(token)
        assert result is None or isinstance(result, ConsumerHeartbeatResult)
        return result

    def complete(self) -> dict[str, object]:
        """All fields of a complete request."""
        return {
            "topics": self.topics,
            "pattern": self.pattern,
            "assignor": self.assignor,
            "rebalance_timeout_ms": REBALANCE_MS,
            "owned": self.owned,
        }

    def reports(self) -> ConsumerHeartbeatResult:
        """A heartbeat as a client sends it: what has changed, or everything after an error."""
        result = self.sends(self.epoch, **self._news())
        assert result is not None
        self.hears(result)
        return result

    def _news(self) -> dict[str, object]:
        if self._told is None:
            return self.complete()
        topics, owned = self._told
        news: dict[str, object] = {} if topics == self.topics else {"topics": self.topics}
        return news if owned == self.owned else {**news, "owned": self.owned}

    def hears(self, result: ConsumerHeartbeatResult) -> None:
        if result.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.epoch, self.owned, self.target = 0, NOTHING, NOTHING
        if result.error is not ErrorCode.NONE:
            self._told = None
            return
        self.epoch, self._told = result.member_epoch, (self.topics, self.owned)
        if result.assignment is not None:
            self.target = result.assignment
            self._told = (self.topics, None)  # every assignment is confirmed
        if not self.busy:
            self.owned = self.target

    @property
    def has_to_confirm(self) -> bool:
        """Whether it has taken over an assignment, and the coordinator does not know that."""
        return self._told is not None and self._told[1] is None

    def settles(self) -> "ConsumerClient":
        """Reports until nothing is new."""
        for _ in range(5):
            if self.reports().assignment is None and self.owned == self.target:
                break
        return self

    def leaves(self, epoch: int = -1) -> ConsumerHeartbeatResult:
        result = self.sends(epoch)
        assert result is not None
        self.epoch, self.owned, self.target, self._told = 0, NOTHING, NOTHING, None
        return result

    def dies(self) -> None:
        """The process ends without a word."""
        self.epoch, self.owned, self.target, self._told = 0, NOTHING, NOTHING, None

    def commits(
        self, partition: int = 0, *, topic: str = "orders", epoch: int | None = None, **fields: object
    ) -> ErrorCode:
        token = self.harness.new_token()
        about = {
            "group_id": self.group_id,
            "generation": self.epoch if epoch is None else epoch,
            "member_id": self.member_id,
            "offsets": (OffsetToCommit(topic=topic, partition=partition, offset=1),),
        }
        request = CommitRequest(**{**about, **fields})  # type: ignore[arg-type]
        self.harness.happens(self.harness.coordinator.commit_offsets(self.harness.now_ms, token, request))
        result = self.harness.replies[token]
        assert isinstance(result, CommitResult)
        (code,) = result.errors.values()
        return code


def settled(*members: ConsumerClient) -> None:
    """All report until every one has its target."""
    for _ in range(4):
        for member in members:
            member.reports()
