"""Where messages may go: whether there is such a topic, and which partition a message id belongs to.

librdkafka takes messages for any name, and says half a minute later that there is no such topic. So a topic is looked
up before its first message. Asking for it also makes it, where the broker does that for clients.

Brokers know message ids partition by partition. A message with an id and without a key would go to any partition, and
again to another; so it goes to the partition of its id, by the hash that keys go by. Every client of ours does the
same, and so does publishing over HTTP (`web.api.publishing`).

    D1  A message with an id, and neither key nor partition, goes to murmur2(id) without its sign, modulo the number of
        partitions; so who sends it again, from wherever, finds the first one.
    D2  As for keys, that holds for as long as the topic has as many partitions: how many there are is asked again
        after COUNT_SECONDS.
"""

import time
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.batch import murmur2
from penstock.client.errors import ClientError, PublishFailed, Unreachable
from penstock.client.kafka_trouble import NOWHERE, nobody, translate

ASK_SECONDS: Final = 3.0
ASK_AGAIN_SECONDS: Final = 0.1
MAKING_SECONDS: Final = 3.0
"""A topic that is asked for may be there a moment later: Apache Kafka answers first and makes it then."""
REACH_SECONDS: Final = 30.0
"""For what passes by itself: elections, and brokers that are away when the number of partitions is needed."""
FIRST_SECONDS: Final = 5.0
"""For the first answer of any broker. Without one the address is more likely wrong than the broker slow, and nobody
should wait a minute to hear of it; a broker that is just being started has this long."""
COUNT_SECONDS: Final = 60.0
POSITIVE: Final = 0x7FFFFFFF

HINTS: Final = {
    KafkaError.INVALID_REPLICATION_FACTOR: "it cannot be made: topics have more replicas by default than there are "
    "nodes; start more, or client.admin.create_topic(..., replication_factor=1)",
    KafkaError.POLICY_VIOLATION: "it cannot be made: client.admin.create_topic(...) says why",
    KafkaError.TOPIC_EXCEPTION: "no topic has such a name: expected 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
}
"""What these mean of a topic that is not there."""


class _Known(NamedTuple):
    partitions: int
    """0: nobody has answered yet, and librdkafka waits for the brokers."""
    until: float
    """On the monotonic clock: when the number is to be asked for again."""


class Destinations:
    """Topics that a producer has looked up. Usable from all threads: whoever is second asks once too often."""

    def __init__(self, producer: Producer, servers: str) -> None:
        self._producer = producer
        self._servers = servers
        self._is_reached = False
        """Whether any broker has ever answered."""
        self._known: dict[str, _Known] = {}
        self._missing: set[str] = set()
        """What was waited for in vain is not waited for again."""

    def knows(self, topic: str, *, counted: bool) -> bool:
        """Whether nobody needs to be asked. `counted`: the number of partitions is needed."""
        known = self._known.get(topic)
        if known is None or not counted:
            return known is not None
        return known.partitions > 0 and time.monotonic() < known.until

    def partition_of(self, topic: str, message_id: bytes) -> int:
        """D1, of a topic that was looked up."""
        known = self._known.get(topic)
        if known is None or known.partitions == 0:  # deleted since, as another message was told
            raise PublishFailed(
                f"publishing to {topic}: it has just gone. Nothing was stored.", retriable=True
            )
        return (murmur2(message_id) & POSITIVE) % known.partitions

    def forget(self, topic: str) -> None:
        """It seems to have been deleted."""
        self._known.pop(topic, None)

    def look_up(self, topic: str, *, counted: bool, patience_s: float) -> None:
        """Returns when a message may be sent there. PublishFailed: nothing was sent."""
        began = time.monotonic()
        while True:
            error = self._ask(topic, min(ASK_SECONDS, max(patience_s, ASK_AGAIN_SECONDS)))
            if error is None:
                return
            trouble = translate(error, f"publishing to {topic}", HINTS)
            if isinstance(trouble, Unreachable):
                if not self._is_reached:
                    trouble = nobody(f"publishing to {topic}", self._servers)
                elif self._is_good_enough(topic, counted):
                    return
            else:
                self._is_reached = True
            patience = min(patience_s, self._patience_s(topic, error.code(), trouble))
            if time.monotonic() - began >= patience:
                self._missing.add(topic)
                raise PublishFailed(f"{trouble}. Nothing was stored.", retriable=trouble.retriable)
            time.sleep(ASK_AGAIN_SECONDS)

    def _ask(self, topic: str, timeout_s: float) -> KafkaError | None:
        """What is wrong with it."""
        try:
            found = self._producer.list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException as problem:
            refused: KafkaError = problem.args[0]
            return refused
        if found.error is not None:
            trouble: KafkaError = found.error
            return trouble
        self._is_reached = True
        self._known[topic] = _Known(len(found.partitions), time.monotonic() + COUNT_SECONDS)
        self._missing.discard(topic)
        return None

    def _is_good_enough(self, topic: str, counted: bool) -> bool:
        """Whether what is known will do while no broker answers: librdkafka waits for one better than we do."""
        partitions = self._known[topic].partitions if topic in self._known else 0
        if counted and not partitions:
            return False
        self._known[topic] = _Known(partitions, time.monotonic() + COUNT_SECONDS)
        return True

    def _patience_s(self, topic: str, code: int, trouble: ClientError) -> float:
        if code in NOWHERE:
            return 0.0 if topic in self._missing else MAKING_SECONDS
        if not self._is_reached:
            return FIRST_SECONDS
        return REACH_SECONDS if trouble.retriable else 0.0
