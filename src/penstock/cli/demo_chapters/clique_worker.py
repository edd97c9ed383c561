"""A worker of the demo's clique, in a process of its own: it says when it began and ended each payment, until SIGTERM
or kill -9."""

import asyncio
import sys
import time

from penstock.cli.demo_chapters.clique_facts import CLIQUE, LEASE_MS, OWNERS, PAYMENTS, Handled
from penstock.clique import Clique, Message, Slot


def main(carrier: str, worker: str) -> None:
    clique = Clique(CLIQUE, carrier, worker=worker, lease_ms=LEASE_MS)

    @clique.handler(PAYMENTS)
    async def handle(message: Message, slot: Slot) -> None:
        began_ns = time.monotonic_ns()
        await asyncio.sleep(0)  # where a real handler waits for a database
        customer = (message.key or b"").decode()
        call = Handled(customer, int(message.text()), began_ns, time.monotonic_ns())
        sys.stdout.write(call.line() + "\n")
        sys.stdout.flush()

    @clique.responder(OWNERS)
    async def answer(message: Message, slot: Slot) -> str:
        return worker

    asyncio.run(clique.run(signals=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
