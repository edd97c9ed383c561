"""ConsumerGroupHeartbeat (KIP-848), which is advertised only to be refused.

Kafka does the same while its feature `group.version` is off, and clients take the refusal as final. If the API were not
advertised, a librdkafka consumer with `group.protocol=consumer` would wait for ever for a broker that has it.
"""

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

NOT_OFFERED = "this broker does not offer the consumer protocol of KIP-848: set group.protocol=classic"


def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    try:
        context.check_group(request.group_id)
    except KafkaError as refused:
        return ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message)
    return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=NOT_OFFERED)
