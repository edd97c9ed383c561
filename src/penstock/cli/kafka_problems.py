"""Errors of librdkafka in the words of the commands. Apart from `problem`, because it loads librdkafka."""

import re
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from penstock.cli.problem import Problem

NOTHING: Mapping[int, str] = {}

UNREACHABLE = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
)
"""librdkafka's own codes for "no broker answers"."""

NO_SUCH_TOPIC = "`penstock topics list` shows what there is; `penstock topics create` makes one"

NO_CONTROLLER = (
    "a majority of the metadata group's voters must be running: start the other nodes; `penstock cluster status` "
    "shows which are missing, and each node's log what it waits for"
)

NOT_ALLOWED = (
    "`penstock acls check` tells which rule decides; an administrator allows it with `penstock acls add` or "
    "`penstock roles grant`"
)

UNKNOWN_CONFIG = re.compile(r"Unknown topic config name: (\S+)")

HINTS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: NO_SUCH_TOPIC,
    KafkaError._UNKNOWN_TOPIC: NO_SUCH_TOPIC,
    KafkaError._UNKNOWN_PARTITION: "`penstock topics describe` shows the topic's partitions",
    KafkaError.TOPIC_ALREADY_EXISTS: "--if-not-exists accepts it; `penstock topics alter` changes it",
    KafkaError.INVALID_PARTITIONS: "a topic's partitions can only grow; `penstock topics describe` shows them",
    KafkaError.INVALID_REPLICATION_FACTOR: "there are fewer nodes than replicas; leave --replication-factor out",
    KafkaError.NON_EMPTY_GROUP: "stop its members first; `penstock groups describe` shows them",
    KafkaError.GROUP_ID_NOT_FOUND: "`penstock groups list` shows what there is",
    KafkaError.UNKNOWN_MEMBER_ID: "stop its members first; `penstock groups describe` shows them",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes and pass -X message.max.bytes=BYTES",
    KafkaError.NOT_CONTROLLER: NO_CONTROLLER,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: NOT_ALLOWED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: NOT_ALLOWED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: NOT_ALLOWED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NOT_ALLOWED,
    KafkaError.KAFKA_STORAGE_ERROR: "the broker cannot write: look at its log and at the disk's free space",
}


def unreachable(bootstrap: str, reason: str = "") -> Problem:
    detail = f": {reason}" if reason else ""
    return Problem(
        f"no broker answers at {bootstrap}{detail}",
        "is it running? `penstock serve` starts one; --bootstrap or PENSTOCK_BOOTSTRAP names another",
    )


def not_ready(bootstrap: str) -> Problem:
    """A node opens its port before it has found its cluster, and refuses clients until then."""
    return Problem(
        f"a node listens at {bootstrap} and does not answer yet: it is starting, or waits for the other nodes",
        f"try again in a moment; {NO_CONTROLLER}",
    )


def no_controller(bootstrap: str, nodes: int) -> Problem:
    known = "1 node" if nodes == 1 else f"{nodes} nodes"
    return Problem(
        f"a broker answers at {bootstrap}, but its cluster of {known} has no controller", NO_CONTROLLER
    )


def explain(
    failure: KafkaException | KafkaError, doing: str, bootstrap: str, needs: Mapping[int, str] = NOTHING
) -> Problem:
    """Turns librdkafka's error into a sentence about what we were `doing`. `needs` says which permission is missing,
    by the error's code: librdkafka does not tell."""
    error = failure.args[0] if isinstance(failure, KafkaException) else failure
    if not isinstance(error, KafkaError):
        return Problem(f"{doing}: {error}")
    if error.code() in UNREACHABLE:
        return unreachable(bootstrap)
    missing = needs.get(error.code())
    reason = error.str() if missing is None else f"{error.str()}; it needs {missing}"
    return Problem(f"{doing}: {reason}", HINTS.get(error.code()) or _suggestion(error.str()))


def _suggestion(message: str) -> str:
    """A known topic config, if the broker refused a name that is close to it."""
    unknown = UNKNOWN_CONFIG.search(message)
    if unknown is None:
        return ""
    from penstock.config import TOPIC_CONFIGS  # most commands never need it
    from penstock.nearest import nearest

    return nearest(unknown[1], TOPIC_CONFIGS).removeprefix("; ")
