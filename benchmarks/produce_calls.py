"""Lists the Python functions that serve one Produce with acks=all, from the socket to the response.

A broker in memory, alone, takes a batch of one record into a topic with default settings, over a real connection, after
some batches that warm it up. The list has every call, on the event loop, of a Python function of the package: methods,
properties, lambdas, generators and coroutines each time they are entered, and the functions that the codec generates.
It has no calls into C (sockets, structs, msgspec). List comprehensions belong to the function they are in, as in newer
versions of Python. The list starts when the event loop asks the connection for a buffer, and ends when the response is
sent and the loop waits again. One flush cycle serves all partitions and all requests that wait; its calls are counted
apart from those of the request itself. "Without helpers" leaves out private functions, properties and generated code.

    python benchmarks/produce_calls.py            the list, in order, indented by depth
    python benchmarks/produce_calls.py --disk     the same with a data folder on a disk
    python benchmarks/produce_calls.py --write    writes the list into ARCHITECTURE.md
"""

import argparse
import asyncio
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import uvloop

import penstock
from penstock.batch import Record, build_batch
from penstock.config import Address, NodeConfig
from penstock.kafka.wire import ApiKey, Message, encode_request, join
from penstock.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.service import Service

PACKAGE = str(Path(penstock.__file__).parent)
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
PAGE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
START, END = "<!-- produce-calls -->", "<!-- /produce-calls -->"
INTRODUCTION = """
### Produce with acks=all, call by call

`benchmarks/produce_calls.py --write` makes this list: every call of a Python function of the package on the event loop,
for one batch on a lone node in memory. One flush cycle serves all partitions and all requests that wait for it, so its
calls are counted apart. "Without helpers" leaves out private functions, properties and generated code; the request took
40 such calls, and 85 in all, before handlers looked resources up through `node.resources`.
"""
FLUSH_CYCLES = ("FlushCycle.", "Flusher.")
LENGTH_BYTES = 4
ALL = -1
VERSION = 12
SAMPLES = 60
WARM_UP = 30

SETTLE_SECONDS = 0.02
"""After the response the loop may still finish something; longer than the flush of a small batch."""


class Call(NamedTuple):
    """One call."""

    depth: int
    file: str
    name: str
    is_helper: bool
    """Whether it is private, a property, or generated: a reader of the path need not know it."""


def is_helper(frame: FrameType) -> bool:
    owner, _, name = frame.f_code.co_qualname.rpartition(".")
    kind = frame.f_globals.get(owner)
    return name.startswith(("_", "<")) or isinstance(getattr(kind, name, None), property)


class Calls:
    """Notes the calls of the thread that runs the event loop, from the first byte of a request on."""

    def __init__(self) -> None:
        self._now: list[Call] = []
        self._depth = 0
        self._counting = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        file, name = code.co_filename, code.co_qualname
        generated = not file.startswith("/") and file.startswith("<") and "importlib" not in file
        if not (file.startswith(PACKAGE) or generated) or name.rpartition(".")[2] in COMPREHENSIONS:
            return
        if name == "Connection.get_buffer" or (name == "FrameReader.buffer" and not self._counting):
            self._counting = True
        if not self._counting:
            return
        if event == "call":
            where = file[len(PACKAGE) + 1 :] if file.startswith(PACKAGE) else "generated"
            self._now.append(Call(self._depth, where, name, generated or is_helper(frame)))
        self._depth = max(0, self._depth + (1 if event == "call" else -1))

    def take(self) -> list[Call]:
        """The calls since the last time."""
        taken, self._now, self._depth, self._counting = self._now, [], 0, False
        return taken


class Client:
    """A connection that sends a request and reads the response."""

    def __init__(self, servers: str) -> None:
        host, port = servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._correlation_id = 0

    def call(self, key: ApiKey, version: int, request: Message) -> None:
        self._correlation_id += 1
        self._socket.sendall(join(encode_request(key, version, self._correlation_id, "calls", request)))
        left = int.from_bytes(self._read(LENGTH_BYTES), "big")
        self._read(left)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._socket.recv(count - len(data))
        return data

    def close(self) -> None:
        self._socket.close()


def produce_request() -> ProduceRequest:
    batch = build_batch([Record(0, 1, b"k", b"v", ())])
    data = PartitionProduceData(index=0, records=batch)
    topics = [TopicProduceData(name="calls", partition_data=[data])]
    return ProduceRequest(acks=ALL, timeout_ms=10_000, topic_data=topics)


async def measure(data_dir: str | None) -> list[Call]:
    """The most frequent list of several: a timer of the broker may run during one."""
    config = NodeConfig(
        memory=data_dir is None,
        data_dir=data_dir or "",
        kafka=Address("127.0.0.1", 0),
        http=None,
        auto_create_topics=True,
    )
    service = Service(config.validate())
    await service.start()
    calls = Calls()
    samples: list[tuple[Call, ...]] = []
    client = Client(str(service.kafka_address))
    try:
        topic = CreatableTopic(name="calls", num_partitions=1, replication_factor=1)
        create = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        await asyncio.to_thread(client.call, ApiKey.CREATE_TOPICS, 5, create)
        sys.setprofile(calls)  # of this thread, which runs the event loop
        for _ in range(SAMPLES):
            await asyncio.to_thread(client.call, ApiKey.PRODUCE, VERSION, produce_request())
            await asyncio.sleep(SETTLE_SECONDS)
            samples.append(tuple(calls.take()))
        sys.setprofile(None)
    finally:
        client.close()
        await service.stop()
    return list(Counter(samples[WARM_UP:]).most_common(1)[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--disk", action="store_true", help="with a data folder, flushed before the response")
    parser.add_argument("--write", action="store_true", help="into ARCHITECTURE.md")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        calls = runner.run(measure(folder if options.disk else None))
    text = listing(calls)
    if options.write:
        before, start, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{start}\n{INTRODUCTION}\n```\n{text}\n```\n{END}{rest.partition(END)[2]}")
    else:
        print(text)


def listing(calls: list[Call]) -> str:
    lines: list[str] = []
    for title, part in zip(("the request", "the flush cycle"), split(calls), strict=True):
        lines.append(f"{title}: {len(part)} calls, {sum(not one.is_helper for one in part)} without helpers")
        lines += [
            f"{number:3} {'  ' * call.depth}{call.name}  ({call.file})" for number, call in enumerate(part, 1)
        ]
    return "\n".join(lines)


def split(calls: list[Call]) -> tuple[list[Call], list[Call]]:
    """The calls of the request itself, and those of the flush cycle."""
    parts: tuple[list[Call], list[Call]] = ([], [])
    flushes = False
    for call in calls:
        if call.depth == 0:
            flushes = call.name.startswith(FLUSH_CYCLES)
        parts[flushes].append(call)
    return parts


if __name__ == "__main__":
    main()
