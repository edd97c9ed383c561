"""Which topic a request means: newer versions name it by id, older ones by name."""

from uuid import UUID

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.wire import NO_UUID
from penstock.node import Node


def resolve_topic(node: Node, name: str | None, topic_id: UUID, *, internal: bool = True) -> str:
    """The name of an existing topic; with `internal=False`, one that clients may write to."""
    if topic_id != NO_UUID:
        topic = node.metadata.state.topic_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
    else:
        topic = node.metadata.state.topics.get(name or "")
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    if topic.internal and not internal:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: clients may only read it"
        )
    return topic.name
