"""The access rules of a queue that names who may produce to it and consume from it.

They are ordinary rules, so that one mechanism decides: producers may write to the topic, consumers may read the topic
as the queue. Everybody else may do neither, unless another rule allows it.
"""

from collections.abc import Iterator

from penstock.errors import KafkaError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.node import Node
from penstock.security.acls import AclBinding, PatternType, Permission, check_binding
from penstock.security.hosts import ANY_HOST
from penstock.security.principals import user
from penstock.types import Caller, Operation, ResourceType
from penstock.web.api.problems import Problem, check, wrong
from penstock.web.api.queue_shapes import NewQueue


class QueueRules:
    """The access rules of one new queue; none if it names neither producers nor consumers."""

    def __init__(self, node: Node, wanted: NewQueue, topic: str) -> None:
        self._node = node
        self._wanted = wanted
        self._topic = topic

    def check(self, caller: Caller) -> None:
        """Problem or KafkaError if the rules cannot be made; nothing is created then."""
        wanted = self._wanted
        if not (wanted.producers or wanted.consumers):
            return
        field = "producers" if wanted.producers else "consumers"
        if not self._node.access.is_required:
            message = f"{field} needs a cluster that requires login (--require-login): here everybody may do everything"
            raise Problem(409, "security_disabled", message, field)
        self._node.resources.check_cluster(caller, Operation.ALTER)
        try:
            list(self._bindings())
        except KafkaError as mistake:
            raise wrong(field, mistake.message) from None

    async def create(self, client: InnerClient) -> None:
        creations = [_creation(binding) for binding in self._bindings()]
        if not creations:
            return
        request = CreateAclsRequest(creations=creations)
        answer = await client.ask(ApiKey.CREATE_ACLS, request, CreateAclsResponse)
        for result in answer.results:
            check(result.error_code, result.error_message)

    def _bindings(self) -> Iterator[AclBinding]:
        topic, queue = (ResourceType.TOPIC, self._topic), (ResourceType.GROUP, self._wanted.queue)
        for name in self._wanted.producers:
            yield _rule(name, Operation.WRITE, *topic)
        for name in self._wanted.consumers:
            yield _rule(name, Operation.READ, *topic)
            yield _rule(name, Operation.READ, *queue)


def _rule(name: str, operation: Operation, kind: ResourceType, resource: str) -> AclBinding:
    principal = name if ":" in name else user(name)
    return check_binding(
        AclBinding(kind, resource, PatternType.LITERAL, principal, ANY_HOST, operation, Permission.ALLOW)
    )


def _creation(binding: AclBinding) -> AclCreation:
    return AclCreation(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        resource_pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
