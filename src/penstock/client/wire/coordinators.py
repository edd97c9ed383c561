"""FindCoordinator: the broker that coordinates a group or a transactional id."""

from enum import IntEnum

from penstock.client.errors import Refused
from penstock.client.wire.connection_pool import ConnectionPool
from penstock.client.wire.settings import ServerAddress
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

TYPES_SINCE_VERSION = 1
"""Version 0 only finds the coordinators of groups."""


class KeyType(IntEnum):
    """Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1

    @property
    def noun(self) -> str:
        return "group" if self is KeyType.GROUP else "transactional id"


def find_coordinator(pool: ConnectionPool, key_type: KeyType, key: str) -> int:
    """The node id of the coordinator, tried once. The pool knows its address afterwards."""
    message = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
    at_least = 0 if key_type is KeyType.GROUP else TYPES_SINCE_VERSION
    answer = pool.ask_any(ApiKey.FIND_COORDINATOR, message, FindCoordinatorResponse, at_least=at_least)
    # Before version 4 the answer itself has the fields of the only coordinator.
    found: Coordinator | FindCoordinatorResponse = answer
    if answer.coordinators:
        found = answer.coordinators[0]
    if found.error_code != ErrorCode.NONE:
        raise Refused(found.error_code, f"the coordinator of {key_type.noun} {key!r}", found.error_message)
    pool.learn_one(found.node_id, ServerAddress(found.host, found.port))
    return found.node_id
