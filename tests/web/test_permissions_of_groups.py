"""Users with a permission on a group, but not on the topics of its queue or subscription."""

from collections.abc import Callable

from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from penstock import Broker
from tests.web.test_login import admin, allow, ask, basic, broker, rule

__all__ = ["admin", "broker"]

Unique = Callable[[str], str]


def make_queue(broker: Broker, queue: str, topic: str, **settings: object) -> None:
    """A queue with two messages."""
    body = {"queue": queue, "topic": topic, **settings}
    assert ask(broker, "/v1/queues", basic("admin"), "POST", body)[0] == 201
    records = {"records": [{"value": "a"}, {"value": "b"}]}
    assert ask(broker, f"/v1/topics/{topic}/records", basic("admin"), "POST", records)[0] == 200


def test_delete_on_the_group_is_enough_to_delete_a_queue_with_settings(
    broker: Broker, admin: AdminClient, unique: Unique
) -> None:
    queue = unique("queue")
    make_queue(broker, queue, unique("secret"), lease_ms=20_000)
    allow(admin, rule(ResourceType.GROUP, queue, AclOperation.DELETE, "bob"))
    answer = ask(broker, f"/v1/queues/{queue}", basic("bob"), "DELETE")
    assert answer[0] == 204, answer
    node = broker._thread.service.node
    assert node is not None
    assert queue not in node.metadata.state.group_configs, "a later queue of this name has the defaults"
