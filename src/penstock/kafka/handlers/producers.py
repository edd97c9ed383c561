"""DescribeProducers: the producers that a partition's leader remembers, and their open transactions."""

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.log.producers import ProducerFacts
from penstock.node.resources import ANY_EPOCH


async def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    rows = ResponseRows(context)
    topics = [
        TopicResponse(
            name=topic.name,
            partitions=[
                await _describe(context, topic.name, index, rows) for index in topic.partition_indexes
            ],
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)


async def _describe(context: RequestContext, topic: str, index: int, rows: ResponseRows) -> PartitionResponse:
    await rows.pause()
    try:
        partition = context.led_partition(topic, index, ANY_EPOCH)
        producers = await rows.build(_state, partition.log.producers.facts())
    except KafkaError as refused:
        return PartitionResponse(
            partition_index=index, error_code=refused.code, error_message=refused.message
        )
    return PartitionResponse(partition_index=index, error_code=ErrorCode.NONE, active_producers=producers)


def _state(facts: ProducerFacts) -> ProducerState:
    return ProducerState(
        producer_id=facts.producer_id,
        producer_epoch=facts.epoch,
        last_sequence=facts.last_sequence,
        last_timestamp=facts.last_timestamp_ms,
        coordinator_epoch=facts.coordinator_epoch,
        current_txn_start_offset=facts.transaction_start_offset,
    )
