"""Reading for subscribers, by the requests that Kafka's consumers send to the leaders of partitions."""

from collections.abc import Mapping, Sequence

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, get_offsets
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.kafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.node.subscriptions import BatchesRead, Bounds
from penstock.types import Isolation, TopicPartition


class LeaderReader:
    """Reads for all subscribers of one node."""

    def __init__(self, client: InnerClient) -> None:
        self._client = client

    async def read(
        self, key: TopicPartition, offset: int, *, max_bytes: int, wait_ms: int, isolation: Isolation
    ) -> BatchesRead:
        """Asks the leader once: `PageReader` repeats reads, for as long as a subscriber waits."""
        topic, partition = key
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )
        leader = self._client.leader_of(topic, partition)
        answer = await self._client.ask(ApiKey.FETCH, request, FetchResponse, to=leader)
        found = answer.responses[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(found.error_code), f"the leader of {key} refused to read it")
        records = found.records or b""
        data = b"".join(records) if isinstance(records, list | tuple) else bytes(records)
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
        return BatchesRead(data, aborted)

    async def bounds(
        self, topic: str, partitions: Sequence[int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, Bounds]:
        starts = await get_offsets(self._client, topic, partitions, EARLIEST, isolation)
        ends = await get_offsets(self._client, topic, partitions, LATEST, isolation)
        return {one: Bounds(starts[one], ends[one]) for one in partitions}

    async def ends_of_terms(self, topic: str, terms: Mapping[int, int]) -> Mapping[int, int]:
        return {
            partition: await self._end_of_term(topic, partition, term) for partition, term in terms.items()
        }

    async def _end_of_term(self, topic: str, partition: int, term: int) -> int:
        wanted = OffsetForLeaderPartition(partition=partition, leader_epoch=term)
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
        answer = await self._client.ask_role(
            self._client.leader_role(topic, partition),
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            request,
            OffsetForLeaderEpochResponse,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            message = f"the leader of {topic}-{partition} refused to tell the end of term {term}"
            raise KafkaError(ErrorCode(found.error_code), message)
        return found.end_offset
