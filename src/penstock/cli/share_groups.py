"""Share groups, the groups of queues. librdkafka's lists leave them out, so each broker is asked in Kafka's protocol.

That works with any broker that can be reached without TLS and SASL: this connection speaks neither.
"""

from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection
from penstock.client.errors import ClientError, Refused
from penstock.client.wire.connection import Connection as Wire
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

SHARE = "share"
TYPES_SINCE_VERSION = 5
"""The first version of ListGroups that tells types. A broker without it has no share groups."""
PLAIN = "plaintext"


class ListedShareGroups(NamedTuple):
    """State by name, and why there may be others."""

    states: dict[str, str]
    doubt: str = ""


def find(connection: Connection, admin: AdminClient) -> ListedShareGroups:
    """All share groups of the brokers that answer."""
    if connection.settings.get("security.protocol", PLAIN).lower() != PLAIN:
        return ListedShareGroups({}, "they can be listed without TLS and SASL only")
    states: dict[str, str] = {}
    doubt = ""
    brokers = connection.metadata(admin, "looking for brokers").brokers.values()
    for broker in brokers:
        try:
            states |= _ask(ServerAddress(str(broker.host), int(broker.port or 0)))
        except ClientError as trouble:
            doubt = str(trouble)
    return ListedShareGroups(states, doubt)


def _ask(address: ServerAddress) -> dict[str, str]:
    settings = ClientSettings(
        bootstrap_servers=str(address),
        client_id="penstock-cli",
        request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
    )
    wire = Wire(address.host, address.port, settings)
    try:
        version = wire.version_of(ApiKey.LIST_GROUPS)
        if version < TYPES_SINCE_VERSION:
            return {}
        answer = wire.call(ApiKey.LIST_GROUPS, ListGroupsRequest(types_filter=[SHARE]), version=version)
    finally:
        wire.close()
    assert isinstance(answer, ListGroupsResponse)
    if answer.error_code != ErrorCode.NONE:
        raise Refused(answer.error_code, f"listing groups at {address}")
    return {row.group_id: row.group_state.lower() for row in answer.groups if row.group_type.lower() == SHARE}
