"""DescribeProducers: the idempotent producers that a partition's leader remembers."""

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
from penstock.log.producers import BatchMark, ProducerRow
from penstock.node.resources import ANY_EPOCH

NO_SEQUENCE, NO_TIMESTAMP = -1, -1
NO_TRANSACTION, NO_COORDINATOR_EPOCH = -1, -1


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
        producers = await rows.build(_state, list(partition.log.producers.rows()))
    except KafkaError as refused:
        return PartitionResponse(
            partition_index=index, error_code=refused.code, error_message=refused.message
        )
    return PartitionResponse(partition_index=index, error_code=ErrorCode.NONE, active_producers=producers)


def _state(row: ProducerRow) -> ProducerState:
    producer_id, epoch, _, batches = row
    last = BatchMark(*batches[-1]) if batches else None
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=NO_SEQUENCE if last is None else last.last_sequence,
        last_timestamp=NO_TIMESTAMP if last is None else last.timestamp,
        coordinator_epoch=NO_COORDINATOR_EPOCH,
        current_txn_start_offset=NO_TRANSACTION,
    )
