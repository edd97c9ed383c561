"""A transactional producer that says every request itself, in either dialect, also wrong ones."""

import time
from collections.abc import Callable, Container
from uuid import UUID

from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode
from penstock.kafka.wire import NO_UUID, ApiKey
from penstock.kafka.wire.messages import add_offsets_to_txn as adding_offsets
from penstock.kafka.wire.messages import add_partitions_to_txn as adding
from penstock.kafka.wire.messages import end_txn as ending
from penstock.kafka.wire.messages import find_coordinator as finding
from penstock.kafka.wire.messages import init_producer_id as initialising
from penstock.kafka.wire.messages import produce as producing
from penstock.kafka.wire.messages import txn_offset_commit as committing
from tests.kafka.raw import PATIENCE_SECONDS, RawClient
from tests.kafka.requests import ask

TIME_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
RETRIED = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


def persist(request: Callable[[], int], retried: Container[int] = RETRIED) -> int:
    """The first code that is not to be retried; NONE, unless the caller lists what else it expects."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (code := request()) in retried:
        assert time.monotonic() < deadline, ErrorCode(code).name
    assert code == ErrorCode.NONE or retried is not RETRIED, ErrorCode(code).name
    return code


class TransactionalProducer:
    """V1 by default. All methods return the error code, and none repeats a request."""

    def __init__(self, client: RawClient, transactional_id: str, *, v2: bool = False) -> None:
        self.client = client
        """Of the coordinator."""
        self.leader = client
        """Of the node that leads the topics."""
        self.transactional_id = transactional_id
        self.produce_version, self.end_version = (12, 5) if v2 else (11, 4)
        self.is_v2 = v2
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def find_coordinator(self) -> int:
        """Also creates the transaction topic."""
        wanted = finding.FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        answer = ask(self.client, ApiKey.FIND_COORDINATOR, 6, wanted, finding.FindCoordinatorResponse)
        return answer.coordinators[0].error_code

    def init(self, *, version: int = 5, timeout_ms: int = TIMEOUT_MS, resume: bool = False) -> int:
        request = initialising.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
        )
        if resume:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        answer = ask(
            self.client, ApiKey.INIT_PRODUCER_ID, version, request, initialising.InitProducerIdResponse
        )
        if not answer.error_code:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def begin(self) -> None:
        """Finds the coordinator and initialises, as often as that takes."""
        persist(self.find_coordinator)
        persist(self.init)

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def add(self, *topics: str, version: int = 3) -> int:
        """AddPartitionsToTxn for partition 0 of each topic; the code of the first."""
        request = adding.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[adding.AddPartitionsToTxnTopic(name=one, partitions=[0]) for one in topics],
        )
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        answer = ask(self.client, key, version, request, adding.AddPartitionsToTxnResponse)
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    def send_request(self, topic: str, *values: str, transactional: bool = True) -> producing.ProduceRequest:
        sequence = self.sequences.get((topic, 0), 0)
        batch = build_batch(
            [Record(at, TIME_MS, None, value.encode()) for at, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        data = producing.PartitionProduceData(index=0, records=batch)
        return producing.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[producing.TopicProduceData(name=topic, partition_data=[data])],
        )

    def send(self, topic: str, *values: str, version: int | None = None) -> int:
        request = self.send_request(topic, *values)
        key, version = ApiKey.PRODUCE, version or self.produce_version
        answer = ask(self.leader, key, version, request, producing.ProduceResponse)
        row = answer.responses[0].partition_responses[0]
        if not row.error_code:
            self.sequences[topic, 0] = self.sequences.get((topic, 0), 0) + len(values)
        return row.error_code

    def write(self, topic: str, *values: str) -> None:
        """What a client does, as often as it takes."""
        if not self.is_v2:
            persist(lambda: self.add(topic))
        persist(lambda: self.send(topic, *values))

    def add_offsets(self, group: str, *, version: int = 4) -> int:
        request = adding_offsets.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        key, response = ApiKey.ADD_OFFSETS_TO_TXN, adding_offsets.AddOffsetsToTxnResponse
        return ask(self.client, key, version, request, response).error_code

    def send_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        version: int | None = None,
        generation: int = -1,
        topic_id: UUID = NO_UUID,
    ) -> int:
        """TxnOffsetCommit for partition 0 of the topic, which version 6 names by its id."""
        row = committing.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = committing.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id_or_member_epoch=generation,
            topics=[committing.TxnOffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[row])],
        )
        key, version = ApiKey.TXN_OFFSET_COMMIT, version or (5 if self.is_v2 else 4)
        answer = ask(self.client, key, version, request, committing.TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def commit_offset(self, group: str, topic: str, offset: int) -> None:
        """What a client does, as often as it takes."""
        if not self.is_v2:
            persist(lambda: self.add_offsets(group))
        persist(lambda: self.send_offset(group, topic, offset))

    def end(self, *, commit: bool, version: int | None = None) -> int:
        request = ending.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        key, version = ApiKey.END_TXN, version or self.end_version
        answer = ask(self.client, key, version, request, ending.EndTxnResponse)
        if not answer.error_code and answer.producer_id >= 0:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def finish(self, *, commit: bool) -> None:
        """What a client does, as often as it takes."""
        persist(lambda: self.end(commit=commit))
