"""Changes a queue's settings while it is in use; settings that are not named stay.

They are group configs, so Kafka's tools can change them too. Consumers are not disturbed, and running leases keep their
end. Only another `order` reloads the queue on each partition: leased messages are then delivered again.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.config import GROUP_CONFIGS
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.node import Node
from penstock.web.api import topics
from penstock.web.api.dead_letters import QueueParams
from penstock.web.api.problems import Problem, check
from penstock.web.api.queue_shapes import (
    DeliveryLimit,
    DurationMs,
    LeaseMs,
    QueueFacts,
    check_dead_letter_topic,
    config_text,
)
from penstock.web.api.queues import GROUP_RESOURCE, Queues, unknown_queue
from penstock.web.api.routing import Call
from penstock.web.api.topics import ConfigText, TopicName, check_known

AnyConfigs = Annotated[
    dict[Annotated[str, Meta(max_length=255)], ConfigText | int | bool | None], Meta(max_length=100)
]

QUEUE_CONFIGS = {name: one for name, one in GROUP_CONFIGS.items() if not name.startswith("consumer.")}
"""The group configs that mean something to a queue."""


class QueueChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are left out stay; null restores the default. `configs` are other group configs by name."""

    order: Literal["none", "key"] | UnsetType | None = UNSET
    exclusive: bool | UnsetType | None = UNSET
    lease_ms: LeaseMs | UnsetType | None = UNSET
    delivery_limit: DeliveryLimit | UnsetType | None = UNSET
    dead_letters: bool | UnsetType | None = UNSET
    dead_letter_topic: TopicName | UnsetType | None = UNSET
    retry_backoff_ms: DurationMs | UnsetType | None = UNSET
    retry_backoff_max_ms: DurationMs | UnsetType | None = UNSET
    configs: AnyConfigs = {}

    def group_configs(self) -> dict[str, str | None]:
        """The group configs by name; None restores the default."""
        wanted: dict[str, object] = {
            "penstock.queue.order": self.order,
            "penstock.queue.exclusive": self.exclusive,
            "share.record.lock.duration.ms": self.lease_ms,
            "share.delivery.count.limit": self.delivery_limit,
            "penstock.dead.letter.enable": self.dead_letters,
            "penstock.dead.letter.topic": self.dead_letter_topic,
            "penstock.retry.backoff.ms": self.retry_backoff_ms,
            "penstock.retry.backoff.max.ms": self.retry_backoff_max_ms,
            **self.configs,
        }
        given = {name: value for name, value in wanted.items() if value is not UNSET}
        return {name: None if value is None else config_text(value) for name, value in given.items()}


class QueueSettings:
    """Changes settings of queues."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queues = Queues(node)

    async def alter_queue(self, call: Call[QueueParams, QueueChanges]) -> QueueFacts:
        queue, changes = call.params.queue, call.body.group_configs()
        if not changes:
            raise Problem(400, "invalid_body", "nothing to change: expected at least one setting")
        check_known("configs", (name for name, value in changes.items() if value is None), QUEUE_CONFIGS)
        topics = await self._node.queues.overview.topics(queue, caller=call.caller)
        if not topics:
            raise unknown_queue(queue)
        check_dead_letter_topic(changes, topics)
        await self.set_configs(call.client, queue, changes)
        return await self._queues.facts(call.caller, queue)

    async def set_configs(self, client: InnerClient, queue: str, changes: Mapping[str, str | None]) -> None:
        """Sets group configs, of which None restores the default; returns when this node has applied them."""
        await self._change(client, queue, changes)
        await self._queues.applied(client.caller, queue, changes)

    async def _change(self, client: InnerClient, queue: str, changes: Mapping[str, str | None]) -> None:
        """All of them or none."""
        configs = [
            AlterableConfig(
                name=name, config_operation=topics.UNSET if value is None else topics.SET, value=value
            )
            for name, value in changes.items()
        ]
        resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=queue, configs=configs)
        answer = await client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest(resources=[resource]),
            IncrementalAlterConfigsResponse,
        )
        check(answer.responses[0].error_code, answer.responses[0].error_message, "configs")
