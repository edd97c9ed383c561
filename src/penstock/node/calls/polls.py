"""Long polls: requests that wait at the node that they ask until something happens.

A method whose requests may do so has a `Poll` in its row (`methods`). The wait in a request says whether it is a long
poll, so a caller cannot forget to say so. `remote` limits how many of them wait at one node, and sends the others
without a wait.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from penstock.errors import ErrorCode
from penstock.kafka.wire.messages.fetch import FetchRequest, FetchResponse
from penstock.node.calls.messages.cliques import AskTable, CliqueHeartbeat, TableAnswer
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.calls.messages.queue_state import SettlementOutcomes, WatchSettlements
from penstock.node.calls.messages.queues import ReceivedBatch, ReceiveRequest
from penstock.ring import HeartbeatReply, HeartbeatStatus

Q = TypeVar("Q")
R = TypeVar("R")

LEASE_PART = 4
"""A coordinator holds a heartbeat back for this part of its lease at most (`ring.coordinator`)."""


class Poll(NamedTuple, Generic[Q, R]):
    """How to tell and change the wait of a method's requests."""

    wait_ms: Callable[[Q], int]
    """How long the request waits; 0 for one that does not."""
    with_wait: Callable[[Q, int], Q]
    """The same request with another wait."""
    is_empty: Callable[[Q, R], bool]
    """Whether the response only says that nothing has happened. Then a request may be sent again."""
    is_repeated: bool = True
    """Whether the same request is sent again while it may not wait there. False: after an empty response its caller
    asks for something else."""


def _with_wait(request: Any, wait_ms: int) -> Any:
    return msgspec.structs.replace(request, wait_ms=wait_ms)


def _fetch_wait_ms(request: KafkaRequest) -> int:
    return request.body.max_wait_ms if isinstance(request.body, FetchRequest) else 0


def _with_fetch_wait(request: KafkaRequest, wait_ms: int) -> KafkaRequest:
    return request._replace(body=msgspec.structs.replace(request.body, max_wait_ms=wait_ms))


def _fetched_nothing(request: KafkaRequest, response: KafkaResponse) -> bool:
    body = response.body
    return (
        isinstance(body, FetchResponse)
        and body.error_code == ErrorCode.NONE
        and not any(one.error_code or one.records for topic in body.responses for one in topic.partitions)
    )


def _heartbeat_wait_ms(request: CliqueHeartbeat) -> int:
    return min(request.wait_ms, request.heartbeat.lease_ms // LEASE_PART)


def _has_no_news(request: CliqueHeartbeat, reply: HeartbeatReply) -> bool:
    return reply.status is HeartbeatStatus.OK and reply.table is None


def _is_known(request: AskTable, answer: TableAnswer) -> bool:
    return answer.table is not None and answer.table.epoch <= request.known_epoch


FETCH: Poll[KafkaRequest, KafkaResponse] = Poll(_fetch_wait_ms, _with_fetch_wait, _fetched_nothing)
"""Of all Kafka APIs between nodes, only Fetch waits for something to happen."""
RECEIVE: Poll[ReceiveRequest, list[ReceivedBatch]] = Poll(
    lambda request: request.wait_ms, _with_wait, lambda request, received: not received
)
WATCH_SETTLEMENTS: Poll[WatchSettlements, SettlementOutcomes] = Poll(
    lambda request: request.wait_ms,
    _with_wait,
    lambda request, answer: not answer.outcomes,
    is_repeated=False,
)
"""A transaction that has ended makes it return, and the settlements of the queue are others by then."""
CLIQUE_HEARTBEAT: Poll[CliqueHeartbeat, HeartbeatReply] = Poll(_heartbeat_wait_ms, _with_wait, _has_no_news)
CLIQUE_TABLE: Poll[AskTable, TableAnswer] = Poll(lambda request: request.wait_ms, _with_wait, _is_known)
