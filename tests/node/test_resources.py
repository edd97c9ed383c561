"""Lookups on behalf of a caller: what a refused caller learns, and what it does not."""

from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

import penstock
from penstock.cluster import ClusterState, TopicCreated
from penstock.errors import ErrorCode, KafkaError
from penstock.node.access import Access
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.resources import Resources
from penstock.types import ANONYMOUS, CLUSTER_NAME, Caller, Operation, ResourceType

KNOWN, OTHER = UUID(int=1), UUID(int=2)
NO_ID = UUID(int=0)
NO_PARTITIONS = cast(PartitionTable, None)


class Denying(Resources):
    """Allows only the given operations, and records all checks."""

    def __init__(self, state: ClusterState, *allowed: tuple[Operation, str]) -> None:
        super().__init__(state, NO_PARTITIONS, Access(state, is_required=False))
        self.allowed = allowed
        self.asked: list[tuple[str, Operation, ResourceType, str]] = []

    def _allows(self, caller: Caller, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        self.asked.append((caller.principal, operation, resource_type, name))
        return (operation, name) in self.allowed


def two_topics() -> ClusterState:
    state = ClusterState(1)
    for name, topic_id in (("orders", KNOWN), ("payments", OTHER)):
        state.apply(TopicCreated(name=name, topic_id=topic_id, assignments=[[1], [1]], configs={}))
    return state


def code_of(refused: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return refused.value.code


def test_by_default_every_caller_may_do_everything() -> None:
    state = two_topics()
    resources = Resources(state, NO_PARTITIONS, Access(state, is_required=False))
    assert resources.topic(ANONYMOUS, "orders", Operation.READ).topic_id == KNOWN
    assert resources.named_topic(ANONYMOUS, "orders", NO_ID, Operation.READ).topic_id == KNOWN
    assert resources.named_topic(ANONYMOUS, None, OTHER, Operation.READ).name == "payments"
    assert [topic.name for topic in resources.topics(ANONYMOUS)] == ["orders", "payments"]
    resources.check_group(ANONYMOUS, "g", Operation.DELETE)
    resources.check_cluster(ANONYMOUS, Operation.ALTER)


def test_a_missing_topic_is_unknown_by_name_by_id_and_by_partition() -> None:
    state = two_topics()
    resources = Resources(state, NO_PARTITIONS, Access(state, is_required=False))
    with pytest.raises(KafkaError) as refused:
        resources.topic(ANONYMOUS, "none", Operation.READ)
    assert code_of(refused) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        resources.topic_by_id(ANONYMOUS, UUID(int=9), Operation.READ)
    assert code_of(refused) == ErrorCode.UNKNOWN_TOPIC_ID
    for index in (-1, 2):
        with pytest.raises(KafkaError) as refused:
            resources.topic_of(ANONYMOUS, "orders", index, Operation.READ)
        assert code_of(refused) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["orders", "none"])
def test_a_refused_caller_does_not_learn_whether_a_topic_exists(name: str) -> None:
    resources = Denying(two_topics())
    with pytest.raises(KafkaError) as refused:
        resources.topic(ANONYMOUS, name, Operation.READ)
    assert code_of(refused) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError) as refused:
        resources.led_partition(ANONYMOUS, name, 0, Operation.READ)
    assert code_of(refused) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_refusal_by_id_does_not_reveal_the_name() -> None:
    with pytest.raises(KafkaError) as refused:
        Denying(two_topics()).topic_by_id(ANONYMOUS, KNOWN, Operation.READ)
    assert code_of(refused) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "orders" not in refused.value.message


def test_listings_omit_what_the_caller_may_not_see() -> None:
    resources = Denying(two_topics(), (Operation.DESCRIBE, "payments"), (Operation.DESCRIBE, "g"))
    assert [topic.name for topic in resources.topics(ANONYMOUS)] == ["payments"]
    assert resources.visible(ANONYMOUS, ResourceType.GROUP, ["g", "h"]) == {"g"}


def test_each_resource_type_has_its_own_error() -> None:
    resources = Denying(two_topics())
    caller = Caller("User:ann", "127.0.0.1", "tool")
    with pytest.raises(KafkaError, match="User:ann has no DELETE permission on group 'g'") as refused:
        resources.check_group(caller, "g", Operation.DELETE)
    assert code_of(refused) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError) as refused:
        resources.check_cluster(caller, Operation.ALTER)
    assert code_of(refused) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert resources.asked == [
        ("User:ann", Operation.DELETE, ResourceType.GROUP, "g"),
        ("User:ann", Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME),
    ]


@pytest.mark.parametrize("on", [CLUSTER_NAME, "orders"])
def test_create_on_the_cluster_or_on_the_topic_allows_to_create_it(on: str) -> None:
    resources = Denying(two_topics(), (Operation.CREATE, on))
    resources.check_create_topic(ANONYMOUS, "orders")
    if on == "orders":
        with pytest.raises(KafkaError) as refused:
            resources.check_create_topic(ANONYMOUS, "payments")
        assert code_of(refused) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_bit_field_has_one_bit_per_allowed_operation() -> None:
    resources = Denying(two_topics(), (Operation.READ, "orders"), (Operation.DESCRIBE, "orders"))
    bits = resources.allowed_operations(ANONYMOUS, ResourceType.TOPIC, "orders")
    assert bits == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert resources.allowed_operations(ANONYMOUS, ResourceType.GROUP, "g") == 0


def test_a_topic_that_a_caller_may_not_describe_looks_like_one_that_is_missing() -> None:
    resources = Denying(two_topics(), (Operation.DESCRIBE, "orders"), (Operation.DESCRIBE, "none"))
    found = [resources.visible_topic(ANONYMOUS, name) for name in ("orders", "payments", "none")]
    assert [topic and topic.name for topic in found] == ["orders", None, None]


def test_facts_of_topics_that_were_deleted_are_left_out() -> None:
    state = two_topics()
    resources = Resources(state, NO_PARTITIONS, Access(state, is_required=False))
    assert resources.topic_names([KNOWN, UUID(int=3), OTHER]) == {KNOWN: "orders", OTHER: "payments"}
    assert [resources.partition_count(name) for name in ("orders", "none")] == [2, 0]
    assert [resources.exists(name) for name in ("orders", "none")] == [True, False]


LOOK_AT_STATE = {
    "kafka/handlers/login.py",  # whether the user of a connection still exists
    "web/callers.py",  # the same for HTTP
    "web/websocket_frames.py",  # the address of a node
}


def test_only_logins_and_addresses_are_looked_up_past_resources() -> None:
    root = Path(penstock.__file__).parent
    files = [*root.glob("web/**/*.py"), *root.glob("kafka/handlers/*.py")]
    found = {str(file.relative_to(root)) for file in files if "metadata.state" in file.read_text()}
    assert found == LOOK_AT_STATE
