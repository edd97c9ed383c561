"""A harness for share groups: members that behave like real ones, on the harness of the consumer groups."""

import itertools
from collections.abc import Collection
from uuid import UUID

from penstock.config import Limits, ShareGroupConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.groups import (
    Coordinator,
    SharedTopic,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from penstock.types import Caller
from tests.groups.group_harness import GroupHarness, Metadata

QUEUE = "workers"


class Cluster:
    """The cluster's metadata, as share groups see it."""

    def __init__(self) -> None:
        self.topics: dict[str, SharedTopic] = {}
        self.configs: dict[str, ShareGroupConfig] = {}
        self.overridden: dict[str, dict[str, str]] = {}
        self.looked_up = 0
        self._numbers = itertools.count(1)

    def topic(self, name: str) -> SharedTopic | None:
        self.looked_up += 1
        return self.topics.get(name)

    def config(self, group_id: str) -> ShareGroupConfig:
        return self.configs.get(group_id, ShareGroupConfig())

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def overrides(self, group_id: str) -> dict[str, str]:
        return self.overridden.get(group_id, {})

    def matching(self, pattern: str, caller: Caller, names: Collection[str] | None = None) -> frozenset[str]:
        """A pattern is a beginning and `.*`; topics that begin with `secret` are for the client `admin` only."""
        if not pattern.endswith(".*"):
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, pattern)
        found = (name for name in self.topics if names is None or name in names)
        return frozenset(
            name
            for name in found
            if name.startswith(pattern[:-2])
            and (caller.client_id == "admin" or not name.startswith("secret"))
        )

    def cost(self, pattern: str) -> int:
        self.matching(pattern, Caller(), ())
        return len(pattern)

    def puts(self, name: str, partitions: int) -> None:
        """A new topic, or a larger one."""
        known = self.topics.get(name)
        topic_id = known.topic_id if known is not None else UUID(int=next(self._numbers))
        self.topics[name] = SharedTopic(name=name, topic_id=topic_id, partitions=partitions)


class ShareGroupHarness(GroupHarness):
    """One coordinator with a cluster around it, which has a topic `orders` of three partitions."""

    def __init__(
        self,
        limits: Limits | None = None,
        now_ms: int = 1_000_000,
        metadata: Metadata | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__(limits=limits, now_ms=now_ms, metadata=metadata)
        self.cluster = cluster or Cluster()
        if cluster is None:
            self.cluster.puts("orders", 3)
        self.coordinator = Coordinator(self.metadata, self.settings, self.limits, self.cluster)

    def member(self, name: str, *topics: str, group_id: str = QUEUE) -> "ShareClient":
        return ShareClient(self, name, topics or ("orders",), group_id)

    def puts(self, name: str, partitions: int) -> None:
        self.cluster.puts(name, partitions)
        self.happens(self.coordinator.topics_changed(self.now_ms, [name]))

    def drops(self, name: str) -> None:
        del self.cluster.topics[name]
        self.happens(self.coordinator.topics_changed(self.now_ms, [name]))

    def share_group(self, group_id: str = QUEUE) -> ShareGroupDescription:
        description = self.coordinator.describe_share_group(group_id)
        assert description is not None
        return description

    def names(self, *, types: tuple[str, ...] = (), states: tuple[str, ...] = ()) -> list[str]:
        return sorted(row.group_id for row in self.coordinator.list_groups(states, types))

    def deletes(self, group_id: str = QUEUE) -> ErrorCode | None:
        """None while the disk has not answered."""
        token = self.new_token()
        self.happens(self.coordinator.delete_share_group(self.now_ms, token, group_id))
        result = self.replies.get(token)
        return None if result is None else result.errors[group_id]  # type: ignore[union-attr, index]

    def restarted(self) -> "ShareGroupHarness":
        harness = ShareGroupHarness(self.limits, self.now_ms, self.metadata, self.cluster)
        for key, value in self.durable:
            harness.coordinator.replay(key, value)
        harness.durable = list(self.durable)
        harness.happens(harness.coordinator.loaded(harness.now_ms))
        return harness


class ShareClient:
    """A share consumer: keeps its epoch and assignment, and sends its topics when they change."""

    def __init__(self, harness: ShareGroupHarness, name: str, topics: tuple[str, ...], group_id: str) -> None:
        self.harness = harness
        self.name = name
        self.topics = topics
        self.group_id = group_id
        self.epoch = 0
        self.assignment: dict[str, int] = {}
        self._told: tuple[str, ...] | None = None

    def sends(
        self, epoch: int, topics: tuple[str, ...] | None = None, /, **fields: object
    ) -> ShareHeartbeatResult | None:
        """A heartbeat whose response is not checked; None while there is none."""
        wish = {"group_id": self.group_id, "member_id": self.name, "member_epoch": epoch, "topics": topics}
        request = ShareHeartbeat(**{**wish, **fields})  # type: ignore[arg-type]
        token = self.harness.new_token()
        self.harness.happens(self.harness.coordinator.share_heartbeat(self.harness.now_ms, token, request))
        result = self.harness.replies.get(token)
        assert result is None or isinstance(result, ShareHeartbeatResult)
        return result

    def reports(self) -> ShareHeartbeatResult:
        """A heartbeat as a client sends it. It joins first, and joins again if it is unknown."""
        news = self.topics if self.epoch == 0 or self.topics != self._told else None
        result = self.sends(self.epoch, news)
        assert result is not None
        self.hears(result)
        return result

    def hears(self, result: ShareHeartbeatResult) -> None:
        if result.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.epoch, self.assignment = 0, {}
        if result.error is not ErrorCode.NONE:
            self._told = None
            return
        self.epoch, self._told = result.member_epoch, self.topics
        if result.assignment is not None:
            self.assignment = {topic.name: topic.partitions for topic in result.assignment}

    def leaves(self) -> ShareHeartbeatResult:
        result = self.sends(-1)
        assert result is not None
        self.epoch, self.assignment = 0, {}
        return result
