"""The cluster's metadata as coordinators of groups see it: as far as this node has applied it."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from penstock.cluster import ClusterState
from penstock.config import ShareGroupConfig
from penstock.groups import SharedTopic
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.patterns import compile_pattern
from penstock.types import Caller, Operation, ResourceType

COMPILED_PATTERNS = 256
"""How many regular expressions are kept compiled: those of a few dozen groups, 256 KB each at most."""


class Visible(Protocol):
    """Which of these resources a caller may use (`node.resources`)."""

    def __call__(
        self, caller: Caller, resource_type: ResourceType, names: Iterable[str], operation: Operation
    ) -> Collection[str]: ...


class AppliedTopics:
    """The topics that this node knows from the metadata that it has applied."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata

    @property
    def version(self) -> int:
        """An offset in the metadata log, which is the same on all nodes."""
        return self._metadata.applied

    def id_of(self, name: str) -> UUID | None:
        topic = self._metadata.state.topics.get(name)
        return topic.topic_id if topic is not None else None


class AppliedMetadata:
    """Topics and group configs."""

    def __init__(self, state: ClusterState, visible: Visible) -> None:
        self._state = state
        self._visible = visible

    def topic(self, name: str) -> SharedTopic | None:
        topic = self._state.topics.get(name)
        if topic is None:
            return None
        return SharedTopic(name=name, topic_id=topic.topic_id, partitions=topic.partitions)

    def topic_name(self, topic_id: UUID) -> str | None:
        topic = self._state.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def config(self, group_id: str) -> ShareGroupConfig:
        return self._state.group_config(group_id)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        return self._state.group_configs.get(group_id, {})

    def matching(self, pattern: str, caller: Caller, names: Collection[str] | None = None) -> frozenset[str]:
        """Internal topics match as well, as in Kafka: a member that does not want them has a pattern that says so."""
        compiled = _compiled(pattern)
        topics = self._state.topics
        among = topics if names is None else [name for name in names if name in topics]
        found = [name for name in among if compiled.fullmatch(name) is not None]
        return frozenset(self._visible(caller, ResourceType.TOPIC, found, Operation.DESCRIBE))

    def cost(self, pattern: str) -> int:
        return int(_compiled(pattern).programsize)


@lru_cache(maxsize=COMPILED_PATTERNS)
def _compiled(pattern: str) -> Any:
    return compile_pattern(pattern, "SubscribedTopicRegex")
