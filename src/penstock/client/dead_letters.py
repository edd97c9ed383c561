"""What died in a queue, looked at and sent back, over HTTP."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.errors import Denied, Garbled
from penstock.client.http_port import HttpPort

PER_REQUEST: Final = 1_000
"""As many as a node tells of, or sends back, at once."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was rejected, or delivered too often. The first three fields say where it lies."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    reason: str | None = None
    from_topic: str | None = None
    from_partition: int | None = None
    from_offset: int | None = None
    deliveries: int | None = None
    died_at_ms: int | None = None


def dead_letters(port: HttpPort, queue: str, limit: int) -> Iterator[DeadLetter]:
    """The oldest of each partition first."""
    place: dict[str, Any] | None = {}
    while place is not None and limit > 0:
        query = {"encoding": "base64", "max_records": min(limit, PER_REQUEST), **place}
        told = port.ask("GET", f"{_path(queue)}?{urlencode(query)}")
        try:
            found = [_letter(one) for one in told["dead_letters"]]
            place = told["next"]
        except (msgspec.ValidationError, LookupError, TypeError, ValueError) as problem:
            raise Garbled(
                f"the dead letters of {queue}: {problem}: is the broker of another version?"
            ) from None
        limit -= len(found)
        yield from found


def send_back(port: HttpPort, queue: str, letters: Sequence[DeadLetter] | None) -> int:
    """How many were sent back: these, or all. Denied, when the others are sent, if some cannot be."""
    path = f"{_path(queue)}/send-back"
    if letters is None:
        answers = _send_back_all(port, path)
    else:
        places = [{"topic": one.topic, "partition": one.partition, "offset": one.offset} for one in letters]
        groups = [places[start : start + PER_REQUEST] for start in range(0, len(places), PER_REQUEST)]
        answers = [port.ask("POST", path, {"letters": group}) for group in groups]
    refused = [one for answer in answers for one in answer["refused"]]
    sent = sum(len(answer["sent_back"]) for answer in answers)
    if refused:
        why = refused[0]["error"]
        raise Denied(why["code"], f"{sent} sent back, {len(refused)} not: {why['message']}")
    return sent


def _send_back_all(port: HttpPort, path: str) -> list[Any]:
    """Again and again, as long as there are more and some of them go."""
    answers = [port.ask("POST", path, {"all": True})]
    while answers[-1]["more"] and answers[-1]["sent_back"] and not answers[-1]["refused"]:
        answers.append(port.ask("POST", path, {"all": True}))
    return answers


def _path(queue: str) -> str:
    return f"/v1/queues/{quote(queue, safe='')}/dead-letters"


def _letter(told: dict[str, Any]) -> DeadLetter:
    key, value = told["key"], told["value"]
    if key is not None:
        key = b64decode(key) if told["key_encoding"] == "base64" else key.encode()
    value = None if value is None else b64decode(value)
    names = DeadLetter.__struct_fields__
    return DeadLetter(**{**{name: told.get(name) for name in names}, "key": key, "value": value})
