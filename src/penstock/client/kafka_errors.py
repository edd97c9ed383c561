"""Converts confluent-kafka's errors to this client's, with advice."""

import logging
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from penstock.client.errors import ClientError, Refused, Unreachable

LIBRDKAFKA_LOG: Final = logging.getLogger("penstock.client.librdkafka")
"""librdkafka's own log has a line for every broken connection: it is off unless you lower this logger's level."""
LIBRDKAFKA_LOG.setLevel(logging.CRITICAL)

HINTS: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic first: client.admin.create_topic(...)",
    KafkaError._UNKNOWN_TOPIC: "create the topic first: client.admin.create_topic(...)",
    KafkaError._UNKNOWN_PARTITION: "the topic has fewer partitions: client.admin.topics() lists them",
    KafkaError.TOPIC_ALREADY_EXISTS: "use it as it is, or give another name",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic, and message.max.bytes of this client",
    KafkaError.NON_EMPTY_GROUP: "stop its members first: client.admin.group(...) names them",
    KafkaError.INVALID_REPLICATION_FACTOR: "there are fewer nodes than that",
}

PUBLISHING_HINTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user has no WRITE permission on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user has no WRITE permission on any topic",
    KafkaError.POLICY_VIOLATION: "the topic takes messages from one producer at a time "
    "(penstock.producer.exclusive), and another one has it; publish again when that one has closed its connection: "
    "docs/queues.md#point-to-point",
}
"""For codes of published messages. In other responses brokers explain the code; for these librdkafka passes on the code
alone."""

UNKNOWN_TOPIC_CODES: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
"""There is no such topic: nothing was stored."""

UNREACHABLE_CODES: Final = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,  # librdkafka dropped its connection while the request was under way
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
    }
)

_NO_HINTS: Final[Mapping[int, str]] = {}


def fatal_error(crash: BaseException) -> KafkaError | None:
    """The fatal error of a producer, which its poll and flush raise. None for another exception.

    A SystemError comes if they were calling a callback meanwhile, as flush does when it fails all messages; sometimes
    the reason is lost on the way."""
    cause = crash if isinstance(crash, KafkaException) else crash.__cause__
    if isinstance(cause, KafkaException):
        error: KafkaError = cause.args[0]
        return error
    return KafkaError(KafkaError._FATAL) if isinstance(crash, SystemError) else None


def client_error(error: KafkaError, asked: str, hints: Mapping[int, str] = _NO_HINTS) -> ClientError:
    """Codes below 0 are librdkafka's own; the others are a broker's. `hints` take precedence over HINTS."""
    hint = hints.get(error.code()) or HINTS.get(error.code())
    if error.code() in UNREACHABLE_CODES:
        return Unreachable(
            f"{asked}: {error.str()}: check that the broker runs, and that bootstrap servers and the addresses that "
            "it advertises are right"
        )
    if error.code() > 0:
        return Refused(error.code(), asked, hint or error.str())
    return ClientError(f"{asked}: {error.str()}" + (f": {hint}" if hint else ""))


def no_broker_answers(asked: str, servers: str) -> Unreachable:
    """No broker has ever answered at these addresses."""
    return Unreachable(f"{asked}: {no_answer_text(servers)}")


def no_answer_text(servers: str) -> str:
    return (
        f"no broker answers at {servers}: start one (`penstock serve`), or give the address of one that runs: "
        'Client("host:port")'
    )
