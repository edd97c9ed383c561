"""A clique: every customer has one owner, while a worker joins and another one is killed."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.cli.demo_chapters.clique_facts import CLIQUE, OWNERS, PAYMENTS, Handled, faults
from penstock.cli.demo_stage import Stage
from penstock.cli.problem import Problem
from penstock.clique import Clique

CUSTOMERS = [f"customer-{number}" for number in range(60)]
ROUND_SECONDS = 0.05
"""Between two payments of a customer."""
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.02
SETTLED_SECONDS = 0.25
"""Customers that have the same owners for so long are not being handed over."""

T = TypeVar("T")


def play(stage: Stage) -> None:
    stage.chapter("A clique: every key has one owner")
    workers: list[WorkerProcess] = []
    try:
        rounds = asyncio.run(_play(stage, workers))
    finally:
        for worker in workers:
            worker.end()
    _verify(stage, len(CUSTOMERS) * rounds, [call for worker in workers for call in worker.calls])


async def _play(stage: Stage, workers: "list[WorkerProcess]") -> int:
    """The payments of each customer."""
    async with Clique(CLIQUE, _carrier(stage)) as clique:
        shop = Shop(clique, workers)
        with stage.working("two workers join"):
            workers += [WorkerProcess(stage, "one"), WorkerProcess(stage, "two")]
            await shop.sell_during(shop.owners(2))
        with stage.working("a third worker joins"):
            workers.append(WorkerProcess(stage, "three"))
            owners = await shop.sell_during(shop.owners(3))
        shares = ", ".join(f"{worker} {count}" for worker, count in sorted(Counter(owners.values()).items()))
        stage.say(f"a third worker joined under load; customers of each worker: {shares}")
        with stage.working("kill -9 of a worker"):
            lost = [customer for customer, owner in owners.items() if owner == "one"]
            workers[0].kill()
            gap_s = await shop.sell_during(shop.served_again(lost))
            await shop.finish()
        stage.say(
            f"kill -9 of a worker: its lease ended, and others served its {len(lost)} customers after {gap_s:.1f} s"
        )
        stage.figure(
            "clique_failover_ms", "kill -9 of a clique's worker to its keys served, ms", gap_s * 1000
        )
        return shop.rounds


def _carrier(stage: Stage) -> str:
    return f"penstock://{stage.connection.bootstrap}"


class WorkerProcess:
    """A worker, and the calls of its handler that it has told of."""

    def __init__(self, stage: Stage, name: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.demo_chapters.clique_worker", _carrier(stage), name]
        with (stage.scratch / "clique-workers.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.calls: list[Handled] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                self.calls.append(Handled.parse(line))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Its calls are complete when this returns."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Shop:
    """Publishes payments, and asks who owns which customer."""

    def __init__(self, clique: Clique, workers: list[WorkerProcess]) -> None:
        self._clique = clique
        self._workers = workers
        self.rounds = 0

    async def sell_during(self, event: Coroutine[Any, Any, T]) -> T:
        """Payments of all customers, again and again, until this has happened."""
        awaited = asyncio.create_task(event)
        while not awaited.done():
            self.rounds += 1
            number = str(self.rounds)
            await asyncio.gather(
                *(self._clique.publish(PAYMENTS, number, key=customer) for customer in CUSTOMERS)
            )
            await asyncio.wait([awaited], timeout=ROUND_SECONDS)
        return await awaited

    async def owners(self, count: int) -> dict[str, str]:
        """Who owns each customer, once so many workers own some and no customer is on its way to another."""
        before: list[str] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answers = await asyncio.gather(*map(self._owner, CUSTOMERS))
                if answers == before and len(set(answers)) == count:
                    return dict(zip(CUSTOMERS, answers, strict=True))
                before = answers
                await asyncio.sleep(SETTLED_SECONDS)

    async def served_again(self, customers: list[str]) -> float:
        """Seconds from now until a customer of a killed worker has another owner."""
        began = time.perf_counter()
        await self._owner(customers[0])
        return time.perf_counter() - began

    async def _owner(self, customer: str) -> str:
        return (await self._clique.request(OWNERS, None, key=customer, timeout=PATIENCE_SECONDS)).decode()

    async def finish(self) -> None:
        """Until every payment is handled."""
        wanted = {(customer, number) for customer in CUSTOMERS for number in range(1, self.rounds + 1)}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wanted - {call[:2] for worker in self._workers for call in list(worker.calls)}:
            if time.monotonic() > deadline:
                return  # `_verify` tells how many are missing
            await asyncio.sleep(LOOK_SECONDS)


def _verify(stage: Stage, total: int, calls: list[Handled]) -> None:
    lost = total - len({(call.customer, call.number) for call in calls})
    overlaps, disorders = faults(calls)
    if lost or overlaps or disorders:
        raise Problem(
            f"of {total:,} payments {lost} were lost, {overlaps} handled at the same time, {disorders} out of order"
        )
    stage.say(
        f"{total:,} payments: none lost, in order for each customer, and never two of a customer at a time"
    )
    stage.figure("clique_lost", "messages lost with the clique's worker", 0)
