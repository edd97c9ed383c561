"""Running totals per customer in the memory of the workers that own them, while one worker becomes four.

Each worker is a process. It saves every total before it acknowledges a payment, and reads totals only when it becomes
the owner of their customers. In the end every total is compared with the payments that were published.
"""

import asyncio
import json
import random
import sqlite3
import sys
import tempfile
from collections import Counter

from example_broker import broker_or_start, fresh

from penstock.clique import Clique, Message, Slot, Slots

CUSTOMERS = [f"customer-{number}" for number in range(100)]
WORKERS = ["w1", "w2", "w3", "w4"]
ROUND_SECONDS = 0.2
LOOK_SECONDS = 0.1


class Totals:
    """The totals of this worker's customers: in memory, and in a database for the next owner."""

    def __init__(self, worker: str, path: str) -> None:
        self._worker = worker
        self._totals: dict[bytes, tuple[int, int]] = {}
        """Of each customer the cents, and the number of the last payment."""
        self._database = sqlite3.connect(path, timeout=60)
        self._database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
            "CREATE TABLE IF NOT EXISTS fences (slot INTEGER PRIMARY KEY, epoch INTEGER);"
            "CREATE TABLE IF NOT EXISTS totals (customer BLOB PRIMARY KEY, slot INTEGER, cents INTEGER, last INTEGER);"
        )

    async def load(self, slots: Slots) -> None:
        """First closes the door behind the previous owner, in case it was paused and wakes up; then reads."""
        with self._database as transaction:
            transaction.executemany(
                "INSERT INTO fences VALUES (?, ?) ON CONFLICT (slot) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                slots.epochs.items(),
            )
        rows = self._database.execute("SELECT customer, slot, cents, last FROM totals")
        self._totals |= {customer: (cents, last) for customer, slot, cents, last in rows if slot in slots}

    async def forget(self, slots: Slots) -> None:
        """The database has them all."""
        for customer in slots.keys(self._totals):
            del self._totals[customer]

    async def add(self, message: Message, slot: Slot) -> None:
        customer, payment = message.key or b"", message.json()
        cents, last = self._totals.get(customer, (0, 0))
        if payment["number"] <= last:
            return  # it was counted by a worker that died before it had acknowledged it
        assert payment["number"] == last + 1, f"{customer!r}: payment {payment['number']} after {last}"
        self._save(customer, slot, cents + payment["cents"], payment["number"])

    def _save(self, customer: bytes, slot: Slot, cents: int, last: int) -> None:
        with self._database as transaction:
            saved = transaction.execute(
                "INSERT INTO totals SELECT ?, ?, ?, ? FROM fences WHERE slot = ? AND epoch = ? "
                "ON CONFLICT (customer) DO UPDATE SET cents = excluded.cents, last = excluded.last",
                (customer, slot.number, cents, last, slot.number, slot.epoch),
            )
        if not saved.rowcount:
            raise RuntimeError(f"{customer!r} has another owner by now")
        self._totals[customer] = cents, last

    async def answer(self, message: Message, slot: Slot) -> str:
        cents, last = self._totals.get(message.key or b"", (0, 0))
        return json.dumps({"owner": self._worker, "cents": cents, "payments": last})


def work(carrier: str, name: str, payments: str, totals: str, worker: str, path: str) -> None:
    """A worker, until SIGTERM."""
    clique = Clique(name, carrier, worker=worker)
    state = Totals(worker, path)
    clique.on_acquire(state.load)
    clique.on_release(state.forget)
    clique.handler(payments)(state.add)
    clique.responder(totals)(state.answer)
    asyncio.run(clique.run(signals=True))


class Shop:
    """Publishes payments, and asks for totals."""

    def __init__(self, clique: Clique, payments: str, totals: str) -> None:
        self._clique = clique
        self._payments = payments
        self._totals = totals
        self.paid: Counter[str] = Counter()
        self.rounds = 0
        self.is_closing = False

    async def sell(self) -> None:
        """One payment of each customer after the other, until the shop closes."""
        while not self.is_closing:
            self.rounds += 1
            await asyncio.gather(*(self._pay(customer, self.rounds) for customer in CUSTOMERS))
            await asyncio.sleep(ROUND_SECONDS)

    async def _pay(self, customer: str, number: int) -> None:
        cents = random.randrange(1, 1000)
        self.paid[customer] += cents
        await self._clique.publish(self._payments, json={"number": number, "cents": cents}, key=customer)

    async def ask(self) -> dict[str, dict[str, object]]:
        """What the owner of each customer answers."""
        asked = (self._clique.request(self._totals, None, key=customer) for customer in CUSTOMERS)
        return dict(zip(CUSTOMERS, map(json.loads, await asyncio.gather(*asked)), strict=True))

    async def wait_for_owners(self, workers: int) -> None:
        """Until so many workers own customers."""
        while len(owners := Counter(row["owner"] for row in (await self.ask()).values())) < workers:
            await asyncio.sleep(LOOK_SECONDS)
        shares = ", ".join(f"{worker} has {owners[worker]} customers" for worker in WORKERS[:workers])
        print(f"after {self.rounds * len(CUSTOMERS)} payments: {shares}")

    async def check(self) -> None:
        """Waits until the last payment is counted, and compares every total."""
        found = await self.ask()
        while any(row["payments"] != self.rounds for row in found.values()):
            await asyncio.sleep(LOOK_SECONDS)
            found = await self.ask()
        assert {customer: row["cents"] for customer, row in found.items()} == dict(self.paid)
        count, cents = self.rounds * len(CUSTOMERS), self.paid.total()
        print(f"all {len(CUSTOMERS)} totals are right: {count} payments, {cents} cents")


async def grow(carrier: str, path: str) -> None:
    names = fresh("totals"), fresh("payments"), fresh("total")
    processes: list[asyncio.subprocess.Process] = []
    try:
        async with Clique(names[0], carrier) as clique:
            shop = Shop(clique, *names[1:])
            selling = asyncio.create_task(shop.sell())
            for count, worker in enumerate(WORKERS, 1):
                arguments = [__file__, "--worker", carrier, *names, worker, path]
                processes.append(await asyncio.create_subprocess_exec(sys.executable, *arguments))
                await shop.wait_for_owners(count)
            shop.is_closing = True
            await selling
            await shop.check()
    finally:
        for process in processes:
            process.terminate()
        codes = await asyncio.gather(*(process.wait() for process in processes))
        print(f"{len(processes)} workers have left, with exit codes {codes}")


def main() -> None:
    with broker_or_start(__doc__) as servers, tempfile.TemporaryDirectory() as folder:
        asyncio.run(grow(f"penstock://{servers}", f"{folder}/totals.sqlite"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        main()
