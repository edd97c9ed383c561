"""A worker in a process of its own, which tests kill and pause. It writes down each call of its handler, as it begins
and as it ends, in a file that all workers append to: what another process sees of it is what happened.

    python worker_program.py CARRIER CLIQUE WORKER STREAM LEASE_MS FILE
"""

import asyncio
import json
import os
import sys
import time
from random import Random

from penstock.clique import Clique, Message, Slot

HANDLER_SECONDS = 0.1
"""The longest; the shortest takes no time."""


def main() -> None:
    carrier, name, worker, stream, lease_ms, path = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    random = Random()

    def note(what: str, message: Message, slot: Slot) -> None:
        line = {
            "what": what,
            "at": time.clock_gettime(time.CLOCK_MONOTONIC),
            "worker": worker,
            "pid": os.getpid(),
            "key": message.text().split()[0],
            "number": int(message.text().split()[1]),
            "slot": slot.number,
            "epoch": slot.epoch,
        }
        os.write(file, json.dumps(line).encode() + b"\n")

    clique = Clique(name, carrier, worker=worker, lease_ms=int(lease_ms), backoff=0.05)

    @clique.handler(stream)
    async def handle(message: Message, slot: Slot) -> None:
        note("begin", message, slot)
        await asyncio.sleep(random.random() * HANDLER_SECONDS)
        if random.random() < 0.01:
            note("fail", message, slot)
            raise ConnectionError("the database is away")
        note("end", message, slot)

    asyncio.run(run(clique, file))


async def run(clique: Clique, file: int) -> None:
    running = asyncio.create_task(clique.run(signals=True))
    while not (clique.status().is_member or running.done()):
        await asyncio.sleep(0.01)
    os.write(file, json.dumps({"what": "joined", "worker": clique.worker}).encode() + b"\n")
    await running


if __name__ == "__main__":
    main()
