"""Catches the record batches that librdkafka really sends, as fixtures for tests/batch.

Run it by hand when a case is added or librdkafka changes its encoding:  python tools/capture_batches.py

It listens on a free local port and speaks just enough of Kafka's protocol for a producer to trust it
(ApiVersions v0, Metadata v1, InitProducerId v0, Produce v7, no flexible encodings), writes each batch as it
came into tests/batch/fixtures/NAME.batch, and what was produced into cases.json beside it. Timestamps and
producer ids are fixed, so that a second run gives the same files.
"""

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

FIXTURES = Path(__file__).parent.parent / "tests" / "batch" / "fixtures"
TOPIC = "captured"
BASE_TIMESTAMP_MS = 1_700_000_000_000
PRODUCER_ID, PRODUCER_EPOCH = 4711, 3
UNSUPPORTED_VERSION = 35

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 3, 10, 18, 22
SERVED = {PRODUCE: 7, METADATA: 1, API_VERSIONS: 0, INIT_PRODUCER_ID: 0}
NAMED = {FETCH: 10, FIND_COORDINATOR: 0}
"""Never asked for, but librdkafka takes lz4 and zstd for unknown to a broker that does not offer these."""

Message = dict[str, Any]
"""timestamp, and where given key, value (repeated `times`) and headers; as JSON has them."""


def text(position: int) -> str:
    """Compressible, or librdkafka would send it uncompressed; different in each record."""
    return f"record {position} of a batch that says the same again and again and again, {position}"


PLAIN: list[Message] = [
    {"timestamp": BASE_TIMESTAMP_MS + 40 * n, "key": f"key-{n}", "value": text(n)} for n in range(20)
]
NULLS: list[Message] = [
    {"timestamp": BASE_TIMESTAMP_MS, "value": "no key"},
    {"timestamp": BASE_TIMESTAMP_MS + 1, "key": "no value"},
    {"timestamp": BASE_TIMESTAMP_MS + 2},
    {"timestamp": BASE_TIMESTAMP_MS + 3, "key": "", "value": ""},
    {"timestamp": BASE_TIMESTAMP_MS - 5000, "key": "earlier than the first", "value": "x" * 300},
]
HEADERS: list[Message] = [
    {"timestamp": BASE_TIMESTAMP_MS, "key": "a", "value": "b", "headers": [["trace", "0f"], ["empty", ""]]},
    {"timestamp": BASE_TIMESTAMP_MS, "value": "none here"},
    {
        "timestamp": BASE_TIMESTAMP_MS,
        "key": "c",
        "headers": [["null", None], ["größe", "5"], ["trace", "again"]],
    },
]
LARGE: list[Message] = [
    {"timestamp": BASE_TIMESTAMP_MS + n // 7, "key": str(n), "value": text(n), "times": 20} for n in range(60)
]

CASES: dict[str, tuple[list[Message], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "nulls": (NULLS, {}),
    "headers": (HEADERS, {}),
    "idempotent": (PLAIN, {"enable.idempotence": True}),
    "gzip": (HEADERS + PLAIN, {"compression.type": "gzip"}),
    "snappy": (HEADERS + PLAIN, {"compression.type": "snappy"}),
    "snappy-large": (LARGE, {"compression.type": "snappy"}),
    "lz4": (HEADERS + PLAIN, {"compression.type": "lz4"}),
    "lz4-large": (LARGE, {"compression.type": "lz4"}),
    "zstd": (HEADERS + PLAIN, {"compression.type": "zstd"}),
    "zstd-idempotent": (NULLS + PLAIN, {"compression.type": "zstd", "enable.idempotence": True}),
}


@dataclass
class Request:
    """One request's bytes and how far they are read."""

    body: bytes
    pos: int = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(">" + layout, self.body, self.pos)
        self.pos += struct.calcsize(">" + layout)
        return values

    def take_bytes(self, length_layout: str) -> bytes:
        (length,) = self.take(length_layout)
        self.pos += max(length, 0)
        return self.body[self.pos - max(length, 0) : self.pos]


@dataclass
class Endpoint:
    """A broker that accepts everything and keeps the batches."""

    port: int = 0
    batches: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            request = Request(await reader.readexactly(size))
            api_key, version, correlation_id = request.take("hhi")
            request.take_bytes("h")  # client id
            answer = struct.pack(">i", correlation_id) + self.answer(api_key, version, request)
            writer.write(struct.pack(">i", len(answer)) + answer)

    def answer(self, api_key: int, version: int, request: Request) -> bytes:
        if api_key == API_VERSIONS:
            offered = {**SERVED, **NAMED}
            ranges = b"".join(struct.pack(">hhh", key, only, only) for key, only in offered.items())
            return struct.pack(">hi", 0 if version == 0 else UNSUPPORTED_VERSION, len(offered)) + ranges
        if SERVED.get(api_key) != version:
            raise ValueError(f"api {api_key} version {version} was not offered")
        if api_key == METADATA:
            return self.metadata()
        if api_key == INIT_PRODUCER_ID:
            return struct.pack(">ihqh", 0, 0, PRODUCER_ID, PRODUCER_EPOCH)
        return self.produce(request)

    def metadata(self) -> bytes:
        broker = struct.pack(">i", 1) + string("127.0.0.1") + struct.pack(">ih", self.port, -1)
        partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        topic = struct.pack(">h", 0) + string(TOPIC) + struct.pack(">bi", 0, 1) + partition
        return struct.pack(">i", 1) + broker + struct.pack(">ii", 1, 1) + topic

    def produce(self, request: Request) -> bytes:
        request.take_bytes("h")  # transactional id
        _acks, _timeout_ms, topics = request.take("hii")
        request.take_bytes("h")
        partitions, index = request.take("ii")
        if (topics, partitions) != (1, 1):
            raise ValueError(f"{topics} topics and {partitions} partitions: expected one of each")
        self.batches.append(request.take_bytes("i"))
        result = struct.pack(">iihqqq", 1, index, 0, 0, -1, 0)
        return struct.pack(">i", 1) + string(TOPIC) + result + struct.pack(">i", 0)


def string(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def produce_all(port: int, messages: list[Message], settings: dict[str, Any]) -> None:
    """Everything is queued before the connection stands, so it goes out as one batch."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 500, **settings})
    for message in messages:
        producer.produce(TOPIC, partition=0, **dict(arguments(message)))
    if producer.flush(20):
        raise TimeoutError("librdkafka did not deliver all records")


def arguments(message: Message) -> Iterator[tuple[str, Any]]:
    for name, value in message.items():
        if name == "times":
            continue
        if name == "value" and value is not None:
            yield name, value.encode() * message.get("times", 1)
        elif name == "headers":
            yield name, [(key, None if data is None else data.encode()) for key, data in value]
        elif name == "timestamp" or value is None:
            yield name, value
        else:
            yield name, value.encode()


async def capture(messages: list[Message], settings: dict[str, Any]) -> bytes:
    endpoint = Endpoint()
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] = endpoint.serve
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        await asyncio.to_thread(produce_all, endpoint.port, messages, settings)
    finally:
        server.close()
    if len(endpoint.batches) != 1:
        raise ValueError(f"{len(endpoint.batches)} batches: expected one")
    return endpoint.batches[0]


def main() -> None:
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for name, (messages, settings) in CASES.items():
        batch = asyncio.run(capture(messages, settings))
        (FIXTURES / f"{name}.batch").write_bytes(batch)
        print(f"{name}: {len(messages)} records, {len(batch)} bytes")
    cases = {
        name: {"messages": messages, "settings": settings} for name, (messages, settings) in CASES.items()
    }
    (FIXTURES / "cases.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
