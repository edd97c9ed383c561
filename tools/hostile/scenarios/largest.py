"""Every Kafka API with requests of very many elements: one name again and again, and a different one each time."""

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from penstock.kafka.wire import ApiKey, Message, encode_request, join
from penstock.kafka.wire.apis import APIS, request_class
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from penstock.kafka.wire.schema import ARRAY, INT32, STRING, Field
from tools.hostile.attack import Attack, Stopwatch
from tools.hostile.generator.kafka_values import MessageMaker

ELEMENTS = 20_000
ANSWER_SECONDS = 2.0
SHOWN_FROM_SECONDS = 0.1
LATER_SECONDS = 0.005
"""So that the node has begun with the request when another client asks for something."""
READ_BYTES = 65_536
SEED = 0


def send_largest_requests(attack: Attack) -> None:
    bystander = attack.kafka()
    waits: list[tuple[float, str]] = []
    for title, data in largest_requests():
        client = attack.kafka()
        client.socket.settimeout(ANSWER_SECONDS)
        watch = Stopwatch()
        with suppress(OSError):
            client.send(data)
            time.sleep(LATER_SECONDS)
            bystander.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            waits.append((watch.seconds, title))
            client.socket.recv(READ_BYTES)
        attack.close(client.socket)
    worst = max(waits)
    attack.note = f"{len(waits)} requests; the longest wait of another client: {worst[0]:.2f} s ({worst[1]})"
    slow = sorted((wait for wait in waits if wait[0] > SHOWN_FROM_SECONDS), reverse=True)
    attack.details += [f"another client waited {seconds:.2f} s after {title}" for seconds, title in slow]


def largest_requests() -> Iterator[tuple[str, bytes]]:
    """Each array of each API, at its last version; the arrays inside it as usual."""
    for key, api in APIS.items():
        cls = request_class(key)
        for path in _arrays(cls, api.last):
            for how in ("repeated", "distinct"):
                maker = MessageMaker(random.Random(SEED), [], 0.0)
                request = maker.make(cls, api.last)
                if _fill(request, path, how):
                    title = f"{ApiKey(key).name} v{api.last}, {how} {'.'.join(field.name for field in path)}"
                    yield title, join(encode_request(key, api.last, 1, "large", request))


def _arrays(cls: type[Message], version: int) -> Iterator[tuple[Field, ...]]:
    """The ways to all arrays of a message."""
    for field in cls.SCHEMA:
        if field.kind == ARRAY and field.in_version(version) and field.tag is None:
            yield (field,)
            if not isinstance(field.of, str):
                yield from ((field, *inner) for inner in _arrays(field.struct, version))


def _fill(message: Message, path: tuple[Field, ...], how: str) -> bool:
    """Makes the array at the end of the path large. False if there is none, or its elements have no names."""
    field, *rest = path
    rows = getattr(message, field.name)
    if not rows:
        return False
    if rest:
        return _fill(rows[0], tuple(rest), how)
    made = [rows[0]] * ELEMENTS if how == "repeated" else list(_distinct(field, rows[0]))
    setattr(message, field.name, made)
    return bool(made)


def _distinct(field: Field, element: Any) -> Iterator[Any]:
    if isinstance(field.of, str):
        if field.of in (STRING, INT32):
            yield from (f"name-{number}" if field.of == STRING else number for number in range(ELEMENTS))
        return
    name = next((one for one in field.struct.SCHEMA if one.kind in (STRING, INT32)), None)
    if name is not None:
        for number in range(ELEMENTS):
            value = f"name-{number}" if name.kind == STRING else number
            yield msgspec.structs.replace(element, **{name.name: value})
