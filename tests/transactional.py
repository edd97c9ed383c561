"""Topics with transactional batches and markers, written through the partition of an embedded broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock import Broker
from penstock.batch import EndMarker, Record, build_batch, check_batch
from penstock.log import Appended
from penstock.node import Node, Partition
from penstock.node.calls import BROKER

PATIENCE_SECONDS = 60
TIME_MS = 1_700_000_000_000
T = TypeVar("T")


class TransactionalTopic:
    """A topic of one partition. Each call returns when its batch is committed."""

    def __init__(self, broker: Broker, name: str, **configs: str) -> None:
        service: Any = broker._thread.service
        self._node: Node = service.node
        self._loop: asyncio.AbstractEventLoop = self._node.storage.flusher._cycle._loop
        self._sequences: dict[int, int] = {}
        self.name = name
        self._run(self._create({key.replace("_", "."): value for key, value in configs.items()}))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    async def _create(self, configs: dict[str, str]) -> None:
        await self._node.controller.create_topic(self.name, caller=BROKER, configs=configs)

    async def _append(self, write: Callable[[Partition], Appended]) -> int:
        partition = self._node.leader(self.name, 0)
        appended = write(partition)
        committed = partition.committed_at(appended)
        if committed is not None:
            await committed
        return appended.base_offset

    def send(self, producer_id: int, *values: str, epoch: int = 0, transactional: bool = True) -> int:
        """The base offset of a batch with these values, which are its keys too."""
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(values)
        rows = [Record(at, TIME_MS, value.encode(), value.encode()) for at, value in enumerate(values)]
        batch = bytearray(
            build_batch(
                rows,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
        )
        return self._run(self._append(lambda partition: partition.append(batch, check_batch(batch))))

    def plain(self, *values: str) -> int:
        """A batch without a producer."""
        rows = [Record(at, TIME_MS, value.encode(), value.encode()) for at, value in enumerate(values)]
        batch = bytearray(build_batch(rows))
        return self._run(self._append(lambda partition: partition.append(batch, check_batch(batch))))

    def end(self, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
        """The offset of the marker."""
        marker = EndMarker(commit, coordinator_epoch=0)
        return self._run(
            self._append(lambda one: one.append_marker(marker, producer_id=producer_id, producer_epoch=epoch))
        )

    def fill(self) -> None:
        """Markers at the start, in the middle and at the end, and aborted records between committed ones:

        0 abort  1-2 a1 a2 (1)  3 p1  4 x1 (2)  5 commit (1)  6 x2 (2)  7 abort (2)  8 b1 (2)  9 commit (2)  10 commit
        """
        self.end(1, commit=False)
        self.send(1, "a1", "a2")
        self.plain("p1")
        self.send(2, "x1")
        self.end(1, commit=True)
        self.send(2, "x2")
        self.end(2, commit=False)
        self.send(2, "b1")
        self.end(2, commit=True)
        self.end(3, commit=True)


COMMITTED = {1: "a1", 2: "a2", 3: "p1", 8: "b1"}
"""The records of `fill` that were committed, by offset."""
ALL = {1: "a1", 2: "a2", 3: "p1", 4: "x1", 6: "x2", 8: "b1"}
END = 11
