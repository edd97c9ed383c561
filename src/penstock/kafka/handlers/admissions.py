"""The first batches of transactions in a Produce request: their partitions must be part of the transaction.

A client of V1 has added the partition by AddPartitionsToTxn, and the leader asks the coordinator whether it has. For a
client of V2 (Produce 12 and later) the leader itself has the partition added. Further batches of the transaction need
no question: the log knows that it is open.
"""

from typing import NamedTuple

from penstock.batch import BatchHeader
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire.messages.produce import ProduceRequest
from penstock.node import Partition
from penstock.node.calls.retry import NO_COORDINATOR_ANSWER
from penstock.node.transactions.led_partitions import ProducerAdmission
from penstock.transactions import Producer, TransactionApi, wire_error
from penstock.types import GroupId, TopicPartition

ADDED_SINCE_VERSION = 12
"""Produce adds its partitions to the transaction (KIP-890, V2)."""


class ProducerNotAdmitted(Exception):
    """The coordinator must be asked first."""


class _Question(NamedTuple):
    name: TopicPartition
    producer: Producer
    admission: ProducerAdmission


class _Answer(NamedTuple):
    question: _Question
    code: ErrorCode


class Admissions:
    """The questions of one request, and their answers."""

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._context = context
        self._transactional_id = request.transactional_id
        self._adds = context.api_version >= ADDED_SINCE_VERSION
        self._questions: dict[GroupId, _Question] = {}
        self._answers: dict[GroupId, _Answer] = {}

    def check(self, partition: Partition, header: BatchHeader) -> None:
        """Returns if the transactional batch may be appended now. ProducerNotAdmitted if the coordinator must be asked
        first; KafkaError if it may not be appended."""
        producer = self._checked(partition, header)
        if partition.log.producers.has_transaction(*producer):
            return
        led = self._context.node.led_transactions
        answer = self._answers.pop(partition.group, None)
        if answer is not None and answer.code:
            raise self._error(partition, answer.code)
        if answer is not None and led.is_valid(partition, producer.producer_id, answer.question.admission):
            return
        admission = led.admission(partition, producer.producer_id)
        self._questions[partition.group] = _Question(partition.name, producer, admission)
        raise ProducerNotAdmitted

    def _checked(self, partition: Partition, header: BatchHeader) -> Producer:
        if self._transactional_id is None:
            message = f"{partition.name}: a transactional batch in a request without a transactional id"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)
        self._context.check_transactional_id(self._transactional_id)
        if header.producer_id < 0:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"{partition.name}: a transactional batch without a producer id"
            )
        return Producer(header.producer_id, header.producer_epoch)

    async def ask(self) -> None:
        """Asks all questions: one call for each producer, and a request usually has one."""
        questions, self._questions = self._questions, {}
        by_producer: dict[Producer, dict[GroupId, _Question]] = {}
        for group, question in questions.items():
            by_producer.setdefault(question.producer, {})[group] = question
        for producer, asked in by_producer.items():
            codes = await self._context.node.led_transactions.ask(
                self._transactional_id or "",
                producer,
                [one.name for one in asked.values()],
                adds=self._adds,
                caller=self._context.caller,
            )
            for (group, question), code in zip(asked.items(), codes, strict=True):
                self._answers[group] = _Answer(question, code)

    def _error(self, partition: Partition, code: ErrorCode) -> KafkaError:
        """Clients of V1 do not know CONCURRENT_TRANSACTIONS here: the last transaction of their producer is ending."""
        if code in NO_COORDINATOR_ANSWER or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds):
            message = f"{partition.name}: the coordinator of the transaction cannot tell yet ({code.name})"
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)
        message = f"{partition.name}: the coordinator of the transaction answers {code.name}"
        return KafkaError(wire_error(code, TransactionApi.PRODUCE, self._context.api_version), message)
