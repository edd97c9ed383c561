"""The topics that a producer has looked up: whether they exist, and which partition a message id belongs to.

librdkafka accepts messages for any topic name, and reports half a minute later that there is no such topic. So the
client looks up a topic before its first message. The lookup also creates it, if the broker creates topics on first use.

Brokers deduplicate message ids within a partition. A message with an id and without a key would go to a random
partition, and to another one when it is published again. So the hash that is used for keys chooses the partition of
its id. All of Penstock's clients do the same, and so does publishing over HTTP (`web.api.publishing`).

    D1  A message with an id, and neither key nor partition, goes to partition murmur2(id) without its sign, modulo the
        number of partitions. So a client that publishes it again, anywhere, reaches the partition of the first one.
    D2  As for keys, this holds while the number of partitions stays the same. The client refreshes that number after
        COUNT_SECONDS.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.batch.producing import murmur2
from penstock.client.errors import ClientError, LoginFailed, PublishFailed, TlsFailed, Unreachable
from penstock.client.kafka_errors import UNKNOWN_TOPIC_CODES, client_error, no_broker_answers

ASK_SECONDS: Final = 3.0
ASK_AGAIN_SECONDS: Final = 0.1
CREATION_SECONDS: Final = 3.0
"""A new topic may exist a moment after the lookup: Apache Kafka answers first and creates it then."""
REACH_SECONDS: Final = 30.0
"""How long temporary problems may last: elections, and brokers that are away when the partitions must be known."""
FIRST_SECONDS: Final = 5.0
"""How long the first answer of any broker may take. If none comes, the address is more likely wrong than the broker
slow, and the user should not wait a minute for that error; a broker that is just starting has this long."""
COUNT_SECONDS: Final = 60.0
POSITIVE: Final = 0x7FFFFFFF

HINTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user has no DESCRIBE permission on the topic (WRITE contains it), or "
    "there is no such topic and the user has no CREATE permission",
    KafkaError.INVALID_REPLICATION_FACTOR: "it cannot be created: the default replication factor is larger than the "
    "number of nodes; start more, or client.admin.create_topic(..., replication_factor=1)",
    KafkaError.POLICY_VIOLATION: "it cannot be created: client.admin.create_topic(...) says why",
    KafkaError.TOPIC_EXCEPTION: "invalid name: expected 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
}
"""Explanations for the lookup of a topic that does not exist."""


Explain = Callable[[ClientError], ClientError]
"""The reason behind an Unreachable, if it is the login or TLS; otherwise the error itself."""


def _unexplained(error: ClientError) -> ClientError:
    return error


class _Known(NamedTuple):
    partitions: int
    """0: no broker has answered yet, and librdkafka waits for them."""
    until: float
    """On the monotonic clock: when the client asks for the number again."""


class TopicCache:
    """Usable from all threads: two of them may look up the same topic at once, which does no harm."""

    def __init__(self, producer: Producer, servers: str, explain: Explain = _unexplained) -> None:
        self._producer = producer
        self._servers = servers
        self._explain = explain
        self._is_reached = False
        """Whether any broker has ever answered."""
        self._known: dict[str, _Known] = {}
        self._missing: set[str] = set()
        """Topics that did not appear in time: the client does not wait for them again."""

    def knows(self, topic: str, *, counted: bool) -> bool:
        """Whether no lookup is needed. `counted`: the number of partitions is needed."""
        known = self._known.get(topic)
        if known is None or not counted:
            return known is not None
        return known.partitions > 0 and time.monotonic() < known.until

    def partition_of(self, topic: str, message_id: bytes) -> int:
        """D1, for a topic that was looked up."""
        known = self._known.get(topic)
        if (
            known is None or known.partitions == 0
        ):  # another message's delivery report said that the topic was deleted
            raise PublishFailed(
                f"publishing to {topic}: it was just deleted. Nothing was stored.", retriable=True
            )
        return (murmur2(message_id) & POSITIVE) % known.partitions

    def forget(self, topic: str) -> None:
        """The topic seems to have been deleted."""
        self._known.pop(topic, None)

    def look_up(self, topic: str, *, counted: bool, timeout_s: float) -> None:
        """Returns when messages may be sent to the topic. Raises PublishFailed: nothing was sent."""
        began = time.monotonic()
        while True:
            left_s = began + timeout_s - time.monotonic()
            error = self._ask(topic, min(ASK_SECONDS, max(left_s, ASK_AGAIN_SECONDS)))
            if error is None:
                return
            failure = client_error(error, f"publishing to {topic}", HINTS)
            if isinstance(failure, Unreachable):
                if self._is_reached and self._is_good_enough(topic, counted):
                    return
                failure = self._explained(topic, failure)
            else:
                self._is_reached = True
            retry_for_s = min(timeout_s, self._retry_for_s(topic, error.code(), failure))
            if time.monotonic() - began >= retry_for_s:
                self._missing.add(topic)
                failed = PublishFailed(
                    f"{_told(topic, failure)}. Nothing was stored.", retriable=failure.retriable
                )
                failed.kafka_code = error.code()
                raise failed from failure
            time.sleep(ASK_AGAIN_SECONDS)

    def _ask(self, topic: str, timeout_s: float) -> KafkaError | None:
        """The error of the lookup."""
        try:
            found = self._producer.list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException as problem:
            refused: KafkaError = problem.args[0]
            return refused
        if found.error is not None:
            failure: KafkaError = found.error
            return failure
        self._is_reached = True
        self._known[topic] = _Known(len(found.partitions), time.monotonic() + COUNT_SECONDS)
        self._missing.discard(topic)
        return None

    def _explained(self, topic: str, failure: Unreachable) -> ClientError:
        reason = self._explain(failure)
        if reason is failure and not self._is_reached:
            return no_broker_answers(f"publishing to {topic}", self._servers)
        return reason

    def _is_good_enough(self, topic: str, counted: bool) -> bool:
        """Whether the cached entry suffices while no broker answers: librdkafka then waits for one."""
        partitions = self._known[topic].partitions if topic in self._known else 0
        if counted and not partitions:
            return False
        self._known[topic] = _Known(partitions, time.monotonic() + COUNT_SECONDS)
        return True

    def _retry_for_s(self, topic: str, code: int, failure: ClientError) -> float:
        if code in UNKNOWN_TOPIC_CODES:
            return 0.0 if topic in self._missing else CREATION_SECONDS
        if not failure.retriable:
            return 0.0
        return REACH_SECONDS if self._is_reached else FIRST_SECONDS


def _told(topic: str, failure: ClientError) -> str:
    """Reasons that were found out afterwards do not say what was asked for."""
    is_explained = isinstance(failure, (LoginFailed, TlsFailed))
    return f"publishing to {topic}: {failure}" if is_explained else str(failure)
