"""The batch in which a dead letter goes back to its topic, under the rules that the topic has for producers: a key if
it is compacted, max.message.bytes, its codec. The letter may have been edited, somebody may have invented it, and the
topic's rules may have changed since it was published.

It is not deduplicated: the topic knows the message id of a letter that comes back. Neither does it count as a producer
of a topic with one exclusive producer."""

from penstock.batch import Record, build_batch, check_produced
from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.topic_rules import CODECS, TopicRules
from penstock.node.queues import dead_letters as dead_letter_headers
from penstock.web.api.publish_checks import check_headers

MARKS = ("penstock-dead-", dead_letter_headers.KAFKA_MARK)
"""The beginnings of the headers that the broker added."""
ZSTD = CODECS["zstd"]


def returned_batch(record: Record, topic: Topic, now_ms: int, *, has_new_headers: bool) -> bytes:
    """The record without the broker's headers, with the time of now: TTL and retention start again. KafkaError or
    Problem if the topic does not take it. May run in a thread."""
    headers = tuple((name, value) for name, value in record.headers if not name.startswith(MARKS))
    record = record._replace(offset=0, timestamp=now_ms, headers=headers)
    if has_new_headers:
        check_headers([record], topic.name, topic.config, "headers.")
    return _under_rules(record, topic, now_ms)


def _under_rules(record: Record, topic: Topic, now_ms: int) -> bytes:
    config = topic.config
    batch = build_batch([record])
    if len(batch) > config.max_message_bytes:  # it may have come compressed
        batch = build_batch([record], compression=CODECS.get(config.compression_type, ZSTD))
    if len(batch) > config.max_message_bytes:
        message = (
            f"{topic.name}: a batch of {len(batch)} bytes, expected at most "
            f"max.message.bytes={config.max_message_bytes}"
        )
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
    taken, _ = TopicRules().apply(memoryview(bytearray(batch)), check_produced(batch), config, now_ms)
    return bytes(taken)
