"""Every method that one node can ask of another needs a permission of the caller on whose behalf it asks."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.cluster import ClusterState, TopicCreated
from penstock.errors import ErrorCode, KafkaError
from penstock.node.access import Access
from penstock.node.calls import BROKER
from penstock.node.calls.methods import CHECKED, METHODS, Method
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.resources import Resources
from penstock.types import Caller, Operation, ResourceType

TOPIC_ID = UUID(int=1)
NOBODY = Caller("User:nobody", "10.0.0.1")
REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
HANDLERS_CHECK = {
    "forward": "the Kafka handler checks, as if the client were connected with this node",
    "kafka_request": "the same",
    "kafka_query": "the same",
    "list_start_offsets": "the node that asks shows the caller its own groups only",
    "list_subscriptions": "the same",
    "list_cliques": "the same",
    "cancel_receive": "names a number that only the node that asks knows",
    "set_passwords": "users set their own password: tests/web/api/test_access_in_a_cluster.py",
    "create_token": "users make their own tokens: the same",
    "revoke_token": "users revoke their own tokens: the same",
}


@pytest.fixture
def resources() -> Resources:
    state = ClusterState(1)
    state.apply(TopicCreated(name="orders", topic_id=TOPIC_ID, assignments=[[1]], configs={}))
    return Resources(state, cast(PartitionTable, None), Access(state, is_required=True))


def request(method: Method[Any, Any]) -> object:
    """Has the field with the resource's name, and nothing else."""
    value: object = TOPIC_ID if method.needs.field.endswith("topic_id") else "orders"
    for name in reversed(method.needs.field.split(".")):
        value = SimpleNamespace(**{name: value})
    return value


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_caller_without_rights_is_refused_and_a_node_is_not(
    resources: Resources, method: Method[Any, Any]
) -> None:
    resources.check_call(BROKER, method.needs, None)
    if method.needs is CHECKED:
        assert method.name in HANDLERS_CHECK, "a method without an operation: say who checks"
        return
    assert method.needs.operation not in (Operation.UNKNOWN, Operation.ANY)
    assert method.needs.resource_type not in (ResourceType.UNKNOWN, ResourceType.ANY)
    with pytest.raises(KafkaError) as refused:
        resources.check_call(NOBODY, method.needs, request(method))
    assert refused.value.code in REFUSED


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_the_field_with_the_name_exists(method: Method[Any, Any]) -> None:
    kind: Any = method.request
    for name in filter(None, method.needs.field.split(".")):
        fields = getattr(kind, "__annotations__", {})
        assert name in fields, f"{method.name}: {kind} has no field {name}"
        kind = fields[name]
