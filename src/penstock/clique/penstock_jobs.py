"""Records of Penstock as messages, and the messages that a clique publishes as records.

A stream is the topic of the same name. Records of any Kafka client are messages: with the default codec the key, value
and headers are the record's own. Another codec makes the value; the record still has the key, because the brokers
choose the owner by it.

If the function `key` of a handler gives a key of another slot than the record's, the worker that owns the record's slot
publishes it again, with that key, to the topic CLIQUE.STREAM.rekeyed, and acknowledges it then. It is handled from
there, by the owner of that key, as the original message: KEY_HEADER has the record's own key.
"""

from typing import Final, NamedTuple

from penstock.client.arguments import DELAY, DELIVER_AT, MESSAGE_ID, TTL
from penstock.client.calls import CALL_ID, REPLY_TO
from penstock.clique.chains import CHAIN_HEADER, Chain
from penstock.clique.clique_queue import CliqueJob
from penstock.clique.codecs import Codec
from penstock.clique.message import Message, MessageHeaders
from penstock.ring.slots import SLOTS, slot_of

KEY_HEADER: Final = "penstock-clique-key"
DONE_HEADERS: Final = frozenset({MESSAGE_ID, DELAY, DELIVER_AT, TTL, KEY_HEADER})
"""They were for the topic that the record came from."""


class JobIdentity(NamedTuple):
    """Of a record: a topic that was deleted and created again has other records at the same offsets."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def identity_of(job: CliqueJob) -> JobIdentity:
    return JobIdentity(job.topic, job.partition, job.offset, job.timestamp_ms)


def slot_of_record(job: CliqueJob) -> int:
    """As the brokers compute it."""
    return job.offset % SLOTS if job.key is None else slot_of(job.key)


def rekeyed_topic(clique: str, stream: str) -> str:
    return f"{clique}.{stream}.rekeyed"


def is_request(job: CliqueJob) -> bool:
    return bool(job.headers) and job.header(REPLY_TO) is not None and job.header(CALL_ID) is not None


def chain_of(job: CliqueJob) -> Chain | None:
    if not job.headers:
        return None
    return Chain.parse((job.header(CHAIN_HEADER) or b"").decode("ascii", "replace"))


def deadline_of(job: CliqueJob) -> float | None:
    """Until when a request may begin, by the wall clock; None if it does not expire."""
    ttl = (job.header(TTL) or b"") if job.headers else b""
    return (job.timestamp_ms + int(ttl)) / 1000 if ttl.isdigit() and len(ttl) < 16 else None


def message_of(job: CliqueJob, stream: str, codec: Codec) -> Message:
    """Raises anything that the codec raises."""
    decoded = codec.decode(stream, job.value or b"")
    key = decoded.key
    if key is None:
        key = job.key if job.topic == stream else job.header(KEY_HEADER)
    value = None if job.value is None and decoded.value == b"" else decoded.value
    return Message(stream=stream, value=value, key=key, headers=(*decoded.headers, *job.headers))


def rekeyed_headers(job: CliqueJob, now_s: float) -> tuple[MessageHeaders, float | None]:
    """The headers of a record that is published again, and the seconds that a request has left."""
    kept = tuple(pair for pair in job.headers if pair[0] not in DONE_HEADERS)
    own_key = () if job.key is None else ((KEY_HEADER, job.key),)
    deadline = deadline_of(job)
    return (*kept, *own_key), None if deadline is None else max(0.0, deadline - now_s)
