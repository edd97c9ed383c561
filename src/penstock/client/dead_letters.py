"""Lists dead letters of a queue and sends them back, over the HTTP API."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from penstock.client.errors import Denied, Garbled
from penstock.client.http_api import HttpApi

PER_REQUEST: Final = 1_000
"""The most that a node lists, or sends back, in one request."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was rejected, or delivered too often. The first three fields say where it is stored."""

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
    worker: str | None = None
    """The consumer that had it last."""
    error_type: str | None = None
    """Why it failed the last time, as far as a worker said so: the type of its exception, and the text."""
    error_text: str | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None


def dead_letters(api: HttpApi, queue: str, limit: int) -> Iterator[DeadLetter]:
    """The oldest of each partition first."""
    cursor: dict[str, Any] | None = {}
    while cursor is not None and limit > 0:
        query = {"encoding": "base64", "max_records": min(limit, PER_REQUEST), **cursor}
        page = api.ask("GET", f"{_path(queue)}?{urlencode(query)}")
        try:
            found = [_letter(one) for one in page["dead_letters"]]
            cursor = page["next"]
        except (msgspec.ValidationError, LookupError, TypeError, ValueError) as problem:
            raise Garbled(
                f"the dead letters of {queue}: {problem}: does the broker have another version?"
            ) from None
        limit -= len(found)
        yield from found


def send_back(api: HttpApi, queue: str, letters: Sequence[DeadLetter] | None) -> int:
    """Returns how many were sent back: these, or all. Raises Denied if some were refused; the others are sent."""
    path = f"{_path(queue)}/send-back"
    if letters is None:
        answers = _send_back_all(api, path)
    else:
        wanted = [{"topic": one.topic, "partition": one.partition, "offset": one.offset} for one in letters]
        pages = [wanted[start : start + PER_REQUEST] for start in range(0, len(wanted), PER_REQUEST)]
        answers = [api.ask("POST", path, {"letters": page}) for page in pages]
    refused = [one for answer in answers for one in answer["refused"]]
    sent = sum(len(answer["sent_back"]) for answer in answers)
    if refused:
        why = refused[0]["error"]
        raise Denied(why["code"], f"{sent} sent back, {len(refused)} not: {why['message']}")
    return sent


def _send_back_all(api: HttpApi, path: str) -> list[Any]:
    """Repeats the request while there are more and none is refused."""
    answers = [api.ask("POST", path, {"all": True})]
    while answers[-1]["more"] and answers[-1]["sent_back"] and not answers[-1]["refused"]:
        answers.append(api.ask("POST", path, {"all": True}))
    return answers


def _path(queue: str) -> str:
    return f"/v1/queues/{quote(queue, safe='')}/dead-letters"


def _letter(found: dict[str, Any]) -> DeadLetter:
    key, value = found["key"], found["value"]
    if key is not None:
        key = b64decode(key) if found["key_encoding"] == "base64" else key.encode()
    value = None if value is None else b64decode(value)
    names = DeadLetter.__struct_fields__
    return DeadLetter(**{**{name: found.get(name) for name in names}, "key": key, "value": value})
