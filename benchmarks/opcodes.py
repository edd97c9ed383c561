"""How many instructions of Python (opcodes) the broker's event loop executes for one HTTP publish, and in which files.
With --push, there is a subscriber that gets each record at once and acks it: the difference is what push costs.

The number does not depend on how busy the machine is, so that a small gain shows at once. It says nothing about time in
compiled code and in the kernel: `http_publish.py` measures the CPU.

    python benchmarks/opcodes.py [--push] [--functions 40]
    PYTHONPATH=OTHER_TREE/src python benchmarks/opcodes.py       the same for another tree
"""

import argparse
import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any
from urllib.parse import urlsplit

from http_publish import JSON_BODY, http_ask
from websockets.sync.client import connect

from penstock import Broker

WARM_UP = 200
REQUESTS = 50
SHOWN_FILES = 25


class OpcodeCount:
    """Counts in the thread of an event loop."""

    def __init__(self) -> None:
        self.by_code: Counter[CodeType] = Counter()

    def on_call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.on_opcode

    def on_opcode(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.by_code[frame.f_code] += 1
        return self.on_opcode


def trace(loop: asyncio.AbstractEventLoop, function: Callable[..., Any] | None) -> None:
    done = threading.Event()

    def switch() -> None:
        sys.settrace(function)
        done.set()

    loop.call_soon_threadsafe(switch)
    done.wait()


def subscribed(port: int, sockets: ExitStack) -> Callable[[], None]:
    """Receives the next record and acks it."""
    socket = sockets.enter_context(connect(f"ws://127.0.0.1:{port}/v1/push", proxy=None))
    socket.send(json.dumps({"type": "subscribe", "subscription": "s", "topics": ["orders"], "credit": 1_000}))

    def take() -> None:
        frame = json.loads(socket.recv())
        while frame["type"] != "messages":
            frame = json.loads(socket.recv())
        ack = {"type": "ack", "topic": "orders", "partition": 0, "offset": frame["messages"][-1]["offset"]}
        socket.send(json.dumps(ack))

    frame = json.loads(socket.recv())
    assert frame["type"] == "subscribed", frame
    return take


def measure(*, push: bool) -> Counter[CodeType]:
    count = OpcodeCount()
    with Broker() as broker, ExitStack() as sockets:
        node: Any = broker._thread.service.node
        loop: asyncio.AbstractEventLoop = node.audit._now.__self__
        port = urlsplit(broker.http_url).port
        assert port is not None
        ask = http_ask(port, b"application/json", JSON_BODY)
        ask()  # makes the topic
        take = subscribed(port, sockets) if push else lambda: None
        for _ in range(WARM_UP):
            ask()
            take()
        trace(loop, count.on_call)
        for _ in range(REQUESTS):
            ask()
            take()
        trace(loop, None)
    return count.by_code


def file_of(code: CodeType) -> str:
    return code.co_filename.rpartition("site-packages/")[2].rpartition("/src/")[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--functions", type=int, default=0, help="show so many functions, too")
    parser.add_argument("--push", action="store_true", help="with a subscriber")
    options = parser.parse_args()
    by_code = measure(push=options.push)
    print(f"{sum(by_code.values()) / REQUESTS:,.0f} opcodes for each request")
    files: Counter[str] = Counter()
    for code, number in by_code.items():
        files[file_of(code)] += number
    for file, number in files.most_common(SHOWN_FILES):
        print(f"{number / REQUESTS:>7.0f}  {file}")
    for code, number in by_code.most_common(options.functions):
        print(f"{number / REQUESTS:>7.0f}  {file_of(code)} {code.co_qualname}")


if __name__ == "__main__":
    main()
