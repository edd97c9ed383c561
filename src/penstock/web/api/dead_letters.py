"""Dead letters of queues: listed, shown, and sent back to the topics that they came from.

They are records of a dead-letter topic, with the headers of `node/queues/dead_letters.py`. An internal queue on that
topic, HANDLED_QUEUE, stores which of them were sent back: a letter that is done in it is not listed any more. Sending a
letter back publishes it to its original topic, as a new record without those headers, and then marks it as done in that
queue. If a node fails between the two, the letter stays listed and may be sent back twice.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.batch import Record, unpacked_total
from penstock.cluster import Topic
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queues import AcceptRequest, PeekRequest, PeekResult
from penstock.node.queues import dead_letters as dead_letter_headers
from penstock.types import Caller, GroupId, Operation, ResourceType
from penstock.web.api.bodies import reserve
from penstock.web.api.jobs import open_jobs
from penstock.web.api.payloads import Encoding, RecordOut, TextEncoding, record_out, text_bytes, value_bytes
from penstock.web.api.problems import ErrorFacts, Problem, as_problem, wrong
from penstock.web.api.publishing import MAX_HEADERS, partition_of_key
from penstock.web.api.returned_letters import MARKS, returned_batch
from penstock.web.api.routing import OFFLOAD_FROM_BYTES, Answer, Call, offloaded
from penstock.web.api.topics import TopicName

HANDLED_QUEUE = "penstock.dead-letters"
"""The queue in which dead letters are done that were sent back."""
PAGE_RECORDS = 1_000
PAGES_MAX = 64
"""The most pages that are read for one response: letters of other queues are in the same topic, and are read too."""
MAX_LETTERS = 1_000

QueueName = Annotated[
    str, Meta(min_length=1, max_length=249, description="A queue's name: the group id of its consumers.")
]
PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
OffsetNumber = Annotated[int, Meta(ge=0, le=2**62)]


class QueueParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: QueueName


class LettersParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic` is a dead-letter topic. `next` of a response names the place where the next request goes on."""

    queue: QueueName
    topic: TopicName | UnsetType = UNSET
    partition: PartitionNumber | UnsetType = UNSET
    offset: OffsetNumber | UnsetType = UNSET
    max_records: Annotated[int, Meta(ge=1, le=MAX_LETTERS)] = 100
    encoding: Encoding = "json"


class LetterParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: QueueName
    topic: TopicName
    partition: PartitionNumber
    offset: OffsetNumber
    encoding: Encoding = "json"


class LetterPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position of a dead letter."""

    topic: TopicName
    partition: PartitionNumber
    offset: OffsetNumber


class LetterOut(RecordOut, frozen=True, kw_only=True):
    """The record as it is stored, and why and where it failed, from its headers."""

    topic: str
    partition: int
    reason: str | None
    from_topic: str | None
    from_partition: int | None
    from_offset: int | None
    deliveries: int | None
    died_at_ms: int | None
    worker: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None


class LetterList(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is the position of the next one; null: these are all."""

    queue: str
    dead_letters: list[LetterOut]
    next: LetterPlace | None


class EditedHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=1024)]
    value: str | None
    encoding: TextEncoding = "text"

    @property
    def stored(self) -> tuple[str, bytes | None]:
        return self.name, text_bytes(self.value, self.encoding, "headers")


class LetterToSend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The position of a dead letter. With `value`, `key` or `headers`, it is sent back with these instead of its own:
    the value is any JSON, or a string with another `encoding`, as in publishing. A key and the values of headers have
    encodings of their own."""

    topic: TopicName
    partition: PartitionNumber
    offset: OffsetNumber
    value: msgspec.Raw | UnsetType = UNSET
    encoding: Encoding = "json"
    key: str | UnsetType | None = UNSET
    key_encoding: TextEncoding = "text"
    headers: Annotated[list[EditedHeader], Meta(max_length=MAX_HEADERS)] | UnsetType = UNSET

    @property
    def place(self) -> LetterPlace:
        return LetterPlace(topic=self.topic, partition=self.partition, offset=self.offset)

    def edited(self, letter: "Letter") -> "Letter":
        record = letter.record
        if self.value is not UNSET:
            record = record._replace(value=value_bytes(self.value, self.encoding, "value"))
        if self.key is not UNSET:
            record = record._replace(key=text_bytes(self.key, self.key_encoding, "key"))
        if self.headers is not UNSET:
            marks = tuple(one for one in record.headers if one[0].startswith(MARKS))
            record = record._replace(headers=(*marks, *(one.stored for one in self.headers)))
        return letter._replace(
            record=record,
            has_new_key=record.key != letter.record.key,
            has_new_headers=self.headers is not UNSET,
        )


class SendBack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These letters, or with `all` up to `max_records` of the queue, from `start` on if it is given: the `next` of the
    response before."""

    letters: Annotated[list[LetterToSend], Meta(max_length=MAX_LETTERS)] = []
    all: bool = False
    start: LetterPlace | None = None
    max_records: Annotated[int, Meta(ge=1, le=MAX_LETTERS)] = MAX_LETTERS


class SentBack(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and the position of the record that was published for it."""

    letter: LetterPlace
    topic: str
    partition: int
    offset: int


class NotSentBack(msgspec.Struct, frozen=True, kw_only=True):
    letter: LetterPlace
    error: ErrorFacts


class SendBackDone(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: the queue has more dead letters, or there may be some from `next` on. Letters that were refused stay, and
    are before it."""

    queue: str
    sent_back: list[SentBack]
    refused: list[NotSentBack]
    more: bool
    next: LetterPlace | None = None


class Letter(NamedTuple):
    """A dead letter that was not sent back. `has_new_key`, `has_new_headers`: it was edited."""

    place: LetterPlace
    record: Record
    has_new_key: bool = False
    has_new_headers: bool = False

    def mark(self, name: str) -> str | None:
        for header, value in self.record.headers:
            if header == name and value is not None:
                return value.decode("utf-8", "replace")
        return None

    def number(self, name: str) -> int | None:
        text = self.mark(name)
        return (
            int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
        )


class DeadLetters:
    """Operations on dead letters."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._beginning = asyncio.Lock()

    # --- queries

    async def list_dead_letters(self, call: Call[LettersParams, None]) -> LetterList:
        params = call.params
        _check_place(params)
        found: list[LetterOut] = []
        async for letter in self._letters(call, params):
            if isinstance(letter, LetterPlace):
                return LetterList(queue=params.queue, dead_letters=found, next=letter)
            if len(found) == params.max_records:
                return LetterList(queue=params.queue, dead_letters=found, next=letter.place)
            found.append(_letter_out(letter, params.encoding))
        return LetterList(queue=params.queue, dead_letters=found, next=None)

    async def show_dead_letter(self, call: Call[LetterParams, None]) -> LetterOut:
        params = call.params
        place = LetterPlace(topic=params.topic, partition=params.partition, offset=params.offset)
        return _letter_out(await self._find(call.caller, params.queue, place), params.encoding)

    async def _letters(
        self,
        call: Call[LettersParams, None] | Call[QueueParams, SendBack],
        params: LettersParams,
        start: LetterPlace | None = None,
    ) -> AsyncIterator[Letter | LetterPlace]:
        """Letters in the order of topic, partition and offset, from `start` on. After PAGES_MAX pages, the position
        where the next request goes on."""
        known = await self._handled()
        pages = 0
        for topic, partition, first in _from(start, await self._partitions(call.caller, params)):
            at = first
            while at >= 0:
                if pages == PAGES_MAX:
                    yield LetterPlace(topic=topic.name, partition=partition, offset=at)
                    return
                pages += 1
                seen = await self._peek(topic, partition, at, PAGE_RECORDS, known)
                reserve(call.reserved, unpacked_total(seen.records))
                for letter in await offloaded(
                    OFFLOAD_FROM_BYTES if seen.records else 0, _opened, topic.name, partition, seen
                ):
                    if letter.mark(dead_letter_headers.GROUP) == params.queue:
                        yield letter
                at = seen.next_offset

    async def _partitions(self, caller: Caller, params: LettersParams) -> list[tuple[Topic, int, int]]:
        """Partitions to read, each with its first offset."""
        if params.topic is UNSET:
            topics = await self._dead_letter_topics(caller, params.queue)
        else:
            topics = [self._topic(caller, params.topic, 0)]
        found: list[tuple[Topic, int, int]] = []
        for topic in topics:
            first = params.partition if isinstance(params.partition, int) else 0
            for partition in range(first, topic.partitions):
                offset = params.offset if isinstance(params.offset, int) and partition == first else 0
                found.append((topic, partition, offset))
        return found

    def _topic(
        self, caller: Caller, name: str, partition: int, operation: Operation = Operation.READ
    ) -> Topic:
        """The topic, which has such a partition."""
        try:
            return self._node.resources.topic_of(caller, name, partition, operation)
        except KafkaError as refusal:
            if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            message = f"there is no such partition of {name!r}"
            raise Problem(404, "unknown_topic_or_partition", message, "topic") from None

    async def _dead_letter_topics(self, caller: Caller, queue: str) -> list[Topic]:
        """The topics of a queue's dead letters that exist, and that the caller may read. Refused if it may read none,
        whether or not they exist."""
        descriptions = await self._node.queues.overview.descriptions(queue, caller=caller)
        if not descriptions:
            raise Problem(404, "unknown_queue", f"there is no queue {queue!r}", "queue")
        config = self._node.resources.queue_config(queue)
        names = {config.dead_letter_topic_of(description.topic) for description in descriptions}
        resources = self._node.resources
        if not resources.visible(caller, ResourceType.TOPIC, names, Operation.READ):
            resources.topic(caller, min(names), Operation.READ)  # an empty list would say that there are none
        return [topic for topic in resources.topics(caller, Operation.READ) if topic.name in names]

    async def _handled(self) -> set[tuple[str, int]]:
        """Partitions of which some letters were sent back."""
        descriptions = await self._node.queues.overview.descriptions(HANDLED_QUEUE, caller=BROKER)
        return {(description.topic, description.partition) for description in descriptions}

    async def _peek(
        self, topic: Topic, partition: int, first: int, most: int, known: set[tuple[str, int]]
    ) -> PeekResult:
        is_new = (topic.name, partition) not in known
        request = PeekRequest(HANDLED_QUEUE, GroupId(topic.topic_id, partition), first, most, is_new)
        return await self._node.queues.router.peek(request, caller=BROKER)

    async def _find(self, caller: Caller, queue: str, place: LetterPlace) -> Letter:
        topic = self._topic(caller, place.topic, place.partition)
        seen = await self._peek(topic, place.partition, place.offset, 1, await self._handled())
        for letter in _opened(place.topic, place.partition, seen):
            if letter.place == place and letter.mark(dead_letter_headers.GROUP) == queue:
                return letter
        message = (
            f"there is no dead letter of {queue!r} at {place.topic}-{place.partition}, offset {place.offset}"
        )
        raise Problem(404, "unknown_dead_letter", message, "offset")

    # --- sending back

    async def send_back_dead_letters(self, call: Call[QueueParams, SendBack]) -> Answer[SendBackDone]:
        queue, wanted = call.params.queue, call.body
        if bool(wanted.letters) == wanted.all:
            raise wrong("letters", "expected `letters`, or `all`")
        if wanted.start is not None and not wanted.all:
            raise wrong("start", "expected `all` as well: `letters` say where they are")
        sent: list[SentBack] = []
        refused: list[NotSentBack] = []
        letters: Iterable[Letter | LetterToSend] = wanted.letters
        after: LetterPlace | None = None
        origins: set[str] | None = None
        if wanted.all:
            letters, after = await self._all(call, queue)
            origins = await self._topics_of(call.caller, queue)
        for one in letters:
            try:
                letter = one if isinstance(one, Letter) else await self._chosen(call.caller, queue, one)
                _check_origin(letter, queue, origins)
                sent.append(await self._send_back(call.caller, letter))
            except Problem as problem:
                refused.append(NotSentBack(letter=one.place, error=problem.facts))
            except PenstockError as trouble:
                refused.append(NotSentBack(letter=one.place, error=as_problem(trouble).facts))
        done = SendBackDone(queue=queue, sent_back=sent, refused=refused, more=after is not None, next=after)
        return Answer(207 if refused else 200, done)

    async def _chosen(self, caller: Caller, queue: str, wanted: LetterToSend) -> Letter:
        return wanted.edited(await self._find(caller, queue, wanted.place))

    async def _all(
        self, call: Call[QueueParams, SendBack], queue: str
    ) -> tuple[list[Letter], LetterPlace | None]:
        """The next letters, and where the others begin."""
        found: list[Letter] = []
        async for letter in self._letters(call, LettersParams(queue=queue), call.body.start):
            if isinstance(letter, LetterPlace):
                return found, letter
            if len(found) == call.body.max_records:
                return found, letter.place
            found.append(letter)
        return found, None

    async def _topics_of(self, caller: Caller, queue: str) -> set[str]:
        descriptions = await self._node.queues.overview.descriptions(queue, caller=caller)
        return {description.topic for description in descriptions}

    async def _send_back(self, caller: Caller, letter: Letter) -> SentBack:
        if letter.mark(dead_letter_headers.CONTENT) == dead_letter_headers.OMITTED:
            message = (
                "the dead letter has no copy of its message; with errors.deadletterqueue.copy.record.enable=true "
                "the queue's next dead letters will have one"
            )
            raise Problem(409, "content_omitted", message, "letters")
        name = letter.mark(dead_letter_headers.TOPIC) or ""
        topic = self._topic(caller, name, 0, Operation.WRITE)
        if topic.internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: clients may only read it"
            )
        if (
            name in self._node.resources.own_logs
        ):  # somebody with the rights of an admin would forge their events
            message = f"{name} has events of the broker: dead letters are not sent there"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        partition = _partition(letter, topic.partitions)
        batch = await self._batch(letter, topic)
        offset = await self._node.record_forwarder.append(topic, partition, batch, caller=caller)
        await self._mark_handled(caller, letter.place)
        return SentBack(letter=letter.place, topic=name, partition=partition, offset=offset)

    async def _batch(self, letter: Letter, topic: Topic) -> bytes:
        record, now_ms = letter.record, self._node.clock.wall_ms()
        build = partial(returned_batch, record, topic, now_ms, has_new_headers=letter.has_new_headers)
        return await offloaded(len(record.value or b"") + len(record.key or b""), build)

    async def _mark_handled(self, caller: Caller, place: LetterPlace) -> None:
        topic = self._topic(caller, place.topic, place.partition)
        async with self._beginning:
            if (place.topic, place.partition) not in await self._handled():
                await self._node.queues.overview.reset(
                    HANDLED_QUEUE, topic, place.partition, 0, caller=BROKER
                )
        try:
            request = AcceptRequest(HANDLED_QUEUE, GroupId(topic.topic_id, place.partition), place.offset)
            await self._node.queues.router.accept(request, caller=BROKER)
        except KafkaError as refused:
            if refused.code != ErrorCode.INVALID_RECORD_STATE:  # another request was faster
                raise


def _check_place(params: LettersParams) -> None:
    if params.partition is not UNSET and params.topic is UNSET:
        raise wrong("partition", "expected `topic` as well")
    if params.offset is not UNSET and params.partition is UNSET:
        raise wrong("offset", "expected `topic` and `partition` as well")


def _check_origin(letter: Letter, queue: str, topics: set[str] | None) -> None:
    """Refuses a letter that names another topic than these of the queue, if they are given. A user with WRITE on the
    dead-letter topic can forge letters: a user with more rights who sends all back would write them to any topic."""
    name = letter.mark(dead_letter_headers.TOPIC) or ""
    if topics is not None and name not in topics:
        message = (
            f"{queue!r} is not on the topic {name!r}, which the dead letter names; `letters` sends it back"
        )
        raise Problem(409, "foreign_dead_letter", message, "letters")


def _from(start: LetterPlace | None, rows: list[tuple[Topic, int, int]]) -> Iterator[tuple[Topic, int, int]]:
    """Partitions with their first offsets, from a position on."""
    for topic, partition, first in rows:
        where = topic.name, partition
        if start is None or where > (start.topic, start.partition):
            yield topic, partition, first
        elif where == (start.topic, start.partition):
            yield topic, partition, start.offset


def _partition(letter: Letter, count: int) -> int:
    """Its original partition, or that of its new key: messages of a key are in one partition."""
    if letter.has_new_key and letter.record.key is not None:
        return partition_of_key(letter.record.key, count)
    return (letter.number(dead_letter_headers.PARTITION) or 0) % count


def _opened(topic: str, partition: int, seen: PeekResult) -> Iterator[Letter]:
    handed = [(run.first, run.last, run.deliveries) for run in seen.ranges]
    for record, _ in open_jobs(seen.records, handed).jobs:
        yield Letter(LetterPlace(topic=topic, partition=partition, offset=record.offset), record)


def _letter_out(letter: Letter, encoding: Encoding) -> LetterOut:
    return LetterOut(
        topic=letter.place.topic,
        partition=letter.place.partition,
        reason=letter.mark(dead_letter_headers.REASON),
        from_topic=letter.mark(dead_letter_headers.TOPIC),
        from_partition=letter.number(dead_letter_headers.PARTITION),
        from_offset=letter.number(dead_letter_headers.OFFSET),
        deliveries=letter.number(dead_letter_headers.DELIVERIES),
        died_at_ms=letter.number(dead_letter_headers.AT),
        worker=letter.mark(dead_letter_headers.WORKER),
        error_type=letter.mark(dead_letter_headers.ERROR_TYPE),
        error_text=letter.mark(dead_letter_headers.ERROR_TEXT),
        first_failure_ms=letter.number(dead_letter_headers.FIRST_FAILURE),
        last_failure_ms=letter.number(dead_letter_headers.LAST_FAILURE),
        **msgspec.structs.asdict(record_out(letter.record, encoding)),
    )
