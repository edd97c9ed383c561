"""The process by which `penstock serve` writes the tables of topics with `penstock.table=delta`, if `lake.root` is set.

A process of its own, so that it takes nothing from the node's threads. It runs while there are such topics for this
node to write: those whose first partition it leads, so that in a cluster each table has one writer. Two nodes that both
take themselves for it do no harm: a table takes the commits of one. If the process ends, it is started again; all that
it needs to go on is in the tables.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.cli.problem import Problem
from penstock.config import LakeSettings, NodeConfig
from penstock.errors import KafkaError
from penstock.worker.restarts import RestartBackoff

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.service import Service

log = logging.getLogger("penstock.lake")

MODULE: Final = "penstock.spark.lake.background_process"
LIBRARIES: Final = ("deltalake", "numpy", "pyarrow")
LOOK_S: Final = 1.0
"""How often the node looks which tables it is to write."""


def check_lake(settings: LakeSettings) -> None:
    """Problem if tables are wanted and what writes them is not installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None] if settings.root else []
    if missing:
        raise Problem(f"lake.root is set, and {missing[0]} is not installed", 'pip install "penstock[lake]"')


@asynccontextmanager
async def writing_tables(config: NodeConfig, service: "Service") -> AsyncIterator[None]:
    """Tables are written within this block."""
    if not config.lake.root:
        yield
        return
    assert service.node is not None
    writer = TableWriter(config, service.node, own_address(service))
    task = asyncio.create_task(writer.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def own_address(service: "Service") -> str:
    """Where a process of this machine reaches the node."""
    address = service.listeners[0].bind
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"


class TableWriter:
    def __init__(self, config: NodeConfig, node: "Node", bootstrap_servers: str) -> None:
        self._node = node
        self._level = config.log_level
        lake = config.lake
        self._settings = {
            "bootstrap_servers": bootstrap_servers,
            "root": lake.root,
            "interval_ms": lake.interval_ms,
            "batch_bytes": lake.batch_bytes,
            "client_config": lake.client_config,
            "log_level": "CRITICAL" if config.log_level == "none" else config.log_level.upper(),
        }
        self._backoff = RestartBackoff()

    async def run(self) -> None:
        while True:
            while not self._topics():
                await asyncio.sleep(LOOK_S)
            began_s = time.monotonic()
            code = await self._run_process()
            if code is None:
                continue
            delay_s = self._backoff.delay_s(time.monotonic() - began_s)
            log.warning(
                "the writer of tables ended with code %d; another one starts in %.0f s", code, delay_s
            )
            await asyncio.sleep(delay_s)

    async def _run_process(self) -> int | None:
        """The code that it ended with by itself; None if it was ended because there is nothing left to write."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, stdin=asyncio.subprocess.PIPE
        )
        try:
            return await self._feed(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _feed(self, process: asyncio.subprocess.Process) -> int | None:
        """Tells the process its topics, until it ends or there are none."""
        assert process.stdin is not None
        ended = asyncio.create_task(process.wait())
        told: list[str] = []
        try:
            process.stdin.write(_line(self._settings))
            while not ended.done():
                topics = self._topics()
                if topics != told:
                    if not topics:
                        return None
                    process.stdin.write(_line(topics))
                    told = topics
                await asyncio.wait([ended], timeout=LOOK_S)
            return ended.result()
        finally:
            ended.cancel()

    def _topics(self) -> list[str]:
        topics = self._node.metadata.state.topics.values()
        wanted = [topic.name for topic in topics if topic.config.table and not topic.internal]
        return sorted(name for name in wanted if self._leads(name))

    def _leads(self, topic: str) -> bool:
        try:
            self._node.leader(topic, 0)
        except KafkaError:
            return False
        return True


def _line(what: object) -> bytes:
    return json.dumps(what).encode() + b"\n"
