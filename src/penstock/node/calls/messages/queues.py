"""Requests to the leader of a partition about the queues on it."""

import msgspec

from penstock.queue import QueueKey
from penstock.types import GroupId


class ReceiveRequest(msgspec.Struct, frozen=True, array_like=True):
    """Messages for a consumer. `standby`: it is content to wait while another consumer has an exclusive queue.
    `wait_id` names a request that waits, so that it can be cancelled; it is unique in the cluster."""

    group_id: str
    consumer: str
    client: str
    partitions: list[GroupId]
    max_records: int
    max_bytes: int
    wait_ms: int
    standby: bool
    wait_id: int = 0
    is_named: bool = True
    """False: the caller did not name itself, so `consumer` is only good for this request."""


class ReceivedBatch(msgspec.Struct, frozen=True, array_like=True):
    """Stored batches of one partition, and which of their records were leased: first, last, deliveries. `driver_id`
    is that of the driver that leased them."""

    partition: GroupId
    records: bytes
    acquired: list[tuple[int, int, int]]
    lease_ms: int
    driver_id: bytes = b""

    @property
    def count(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.acquired)


class CancelReceive(msgspec.Struct, frozen=True, array_like=True):
    wait_id: int


class ReturnRequest(msgspec.Struct, frozen=True, array_like=True):
    """Gives back leased messages as if they had never been delivered."""

    group_id: str
    consumer: str
    partition: GroupId
    ranges: list[tuple[int, int]]


class MessageSettlement(msgspec.Struct, frozen=True, array_like=True):
    """A consumer's decision about one message: a kind of `queue.AckKind`, and the delay of a release."""

    offset: int
    kind: int
    delay_ms: int | None = None
    failure: tuple[str, str] | None = None
    """Why it is released or rejected: the type and the text of an error."""


class DeliveryId(msgspec.Struct, frozen=True, array_like=True):
    """One delivery of a message: the driver that made it, and its number."""

    driver_id: bytes
    deliveries: int


class SettleRequest(msgspec.Struct, frozen=True, array_like=True):
    """`delivery`: the one that is settled. None: any lease that the consumer holds now."""

    group_id: str
    consumer: str
    partition: GroupId
    rows: list[MessageSettlement]
    delivery: DeliveryId | None = None


class SettleResult(msgspec.Struct, frozen=True, array_like=True):
    """The messages whose settlement was refused: offset, error code, reason. All others are settled durably."""

    refused: list[tuple[int, int, str]]


class PeekRequest(msgspec.Struct, frozen=True, array_like=True):
    """Messages that are not done, from an offset on. `is_new`: nothing is stored of this queue, so none is done."""

    group_id: str
    partition: GroupId
    first: int
    max_records: int
    is_new: bool


class PeekedRange(msgspec.Struct, frozen=True, array_like=True):
    first: int
    last: int
    state: str
    deliveries: int
    consumer: str | None
    until_ms: int | None


class PeekResult(msgspec.Struct, frozen=True, array_like=True):
    """Messages that are not done, and the stored batches that hold them; `next_offset` is where the next request should
    begin, -1 at the end."""

    ranges: list[PeekedRange]
    records: bytes
    next_offset: int


class ScheduledRequest(msgspec.Struct, frozen=True, array_like=True):
    """Messages that are deferred."""

    group_id: str
    partition: GroupId
    max_records: int


class ScheduledResult(msgspec.Struct, frozen=True, array_like=True):
    """How many messages are deferred, and the next of them as (due_ms, offset). The queue has not read the last
    `unread` records of its log yet; some of these may be deferred too."""

    deferred: int
    unread: int
    coming: list[tuple[int, int]]


class AcceptRequest(msgspec.Struct, frozen=True, array_like=True):
    """A message is done that was not delivered."""

    group_id: str
    partition: GroupId
    offset: int


class DescribeQueue(msgspec.Struct, frozen=True, array_like=True):
    """The state of a queue that begins at `start_offset` by its stored state. `is_opened`: the leader loads the queue
    if it is not loaded, and reads the log to find messages that are not due. `is_counted`: the leader counts the
    messages of a queue that is not loaded in its stored state."""

    queue: QueueKey
    start_offset: int
    is_opened: bool = False
    max_consumers: int = 0
    """How many consumers the answer may list."""
    is_counted: bool = False


class QueueDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One queue on one partition. Numbers are None where the partition's leader could not be asked, or where the queue
    is not loaded and the request did not ask for a count of its messages."""

    group_id: str
    topic: str
    partition: int
    leader: int
    start_offset: int
    """Everything before is done."""
    end_offset: int | None = None
    undone: int | None = None
    """Messages that are not done, including those that the queue has not read yet."""
    available: int | None = None
    leased: int | None = None
    deferred: int | None = None
    waiting: int | None = None
    """Messages that wait for an earlier message of their key."""
    dying: int | None = None
    consumers: int | None = None
    """Consumers that hold leases; nodes of this version do not read it."""
    holder: str | None = None
    """The consumer that has an exclusive queue."""
    workers: int | None = None
    """Consumers that are connected to it over Kafka or WebSocket, with or without leases."""
    rate: float | None = None
    """Messages that were settled per second, over the last minute."""
    deleted_undone: int = 0
    """Messages that were deleted before they were done, since its leader counts."""


class QueueConsumer(msgspec.Struct, frozen=True, array_like=True):
    """A consumer of a queue on one partition: `rate` is the number of messages that it settles per second, `seen_ms`
    the time of its last request if it has no connection."""

    consumer_id: str
    name: str
    address: str
    interface: str
    since_ms: int
    leases: int
    rate: float
    seen_ms: int | None = None


class DescribedQueue(msgspec.Struct, frozen=True, array_like=True):
    """None if the node that was asked does not lead the partition."""

    description: QueueDescription | None
    consumers: list[QueueConsumer] = []
    consumer_count: int = 0
    """How many consumers there are, listed or not."""
