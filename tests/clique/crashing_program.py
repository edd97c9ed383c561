"""A worker in a process of its own, which one of its messages kills. It writes down each number that it begins and
ends.

    python crashing_program.py CARRIER CLIQUE STREAM LEASE_MS FILE
"""

import asyncio
import os
import signal
import sys

from penstock.clique import Clique, Message, Slot

IN_HAND = 50
"""So many messages the worker holds when it dies."""


def main() -> None:
    carrier, name, stream, lease_ms, path = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    clique = Clique(name, carrier, worker="w1", lease_ms=int(lease_ms), concurrency=1)

    @clique.handler(stream)
    async def handle(message: Message, slot: Slot) -> None:
        os.write(file, b"begin %s\n" % message.value)
        if message.value == b"poison":
            while clique.status().in_flight < IN_HAND:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, b"end %s\n" % message.value)

    asyncio.run(clique.run(signals=True))


if __name__ == "__main__":
    main()
