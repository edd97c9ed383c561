"""TLS beside plaintext, on Penstock and on Apache Kafka in the same run: `make bench-tls`.

    throughput   producing and consuming, 1 KB, one partition, acks all; the client is librdkafka each time
    permissions  the CPU that the broker uses per Produce request with and without decisions on permissions
    memory       what 1,000 idle TLS connections take, and 1,000 without TLS

A figure with TLS is stated as a ratio to the one without, of the same broker. The brokers take turns. Results go to
.cache/bench/ as Markdown.
"""

import argparse
import platform
import socket
import ssl
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import access_cost
import page
from kafka_launcher import CACHE, VERSION, Kafka, Unavailable, fetch
from penstock_launcher import Penstock
from start_time import free_port

import penstock
from penstock.cli.bench import procfs
from penstock.cli.bench.runner import Shape, Target, one_round, progress
from penstock.cli.problem import Problem
from penstock.node.tls.dev_certificates import LOCAL_HOSTS, DevCertificates

MESSAGES = 200_000
SIZE_BYTES = 1024
IDLE_CONNECTIONS = 1_000


KAFKA_TLS = """listeners=PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""

PENSTOCK_TLS = """[[listeners]]
name = "plain"
bind = "127.0.0.1:{port}"

[[listeners]]
name = "tls"
bind = "127.0.0.1:{tls}"
tls = {{ cert = "{folder}/broker.pem", key = "{folder}/broker.key" }}
"""


class Ports(NamedTuple):
    """One broker under load: its process, and its two ports."""

    target: Target
    tls_port: int


class Certificates(NamedTuple):
    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def keystore(self) -> Path:
        """Key and certificate in one file, as Kafka wants them."""
        made = self.folder / "broker-keystore.pem"
        made.write_text((self.folder / "broker.key").read_text() + (self.folder / "broker.pem").read_text())
        return made


def make_certificates(folder: Path) -> Certificates:
    DevCertificates(folder).issue("broker", common_name="broker", hosts=LOCAL_HOSTS)
    return Certificates(folder)


class KafkaWithTls(Kafka):
    """Kafka with a second listener."""

    def __init__(self, libs: Path, folder: Path, certificates: Certificates) -> None:
        super().__init__(libs, folder)
        self.tls_port = free_port()
        lines = self._config.read_text().splitlines()
        controller = next(line for line in lines if line.startswith("controller.quorum.voters")).rsplit(
            ":", 1
        )[1]
        replaced = ("listeners=", "advertised.listeners=", "listener.security.protocol.map=")
        kept = [line for line in lines if not line.startswith(replaced)]
        added = KAFKA_TLS.format(
            port=self.port, tls=self.tls_port, controller=controller, keystore=certificates.keystore
        )
        self._config.write_text("\n".join([*kept, added]))


@contextmanager
def penstock_with_tls(folder: Path, certificates: Certificates) -> Iterator[Ports]:
    port, tls_port = free_port(), free_port()
    config = certificates.folder / "penstock.toml"
    config.write_text(PENSTOCK_TLS.format(port=port, tls=tls_port, folder=certificates.folder))
    broker = Penstock(folder, "--config", str(config), port=port)
    broker.start()
    try:
        yield Ports(Target(name="penstock", bootstrap=broker.bootstrap, pid=broker.pid), tls_port)
    finally:
        broker.stop()


@contextmanager
def kafka_with_tls(libs: Path, folder: Path, certificates: Certificates) -> Iterator[Ports]:
    broker = KafkaWithTls(libs, folder, certificates)
    with broker:
        yield Ports(Target(name="kafka", bootstrap=broker.bootstrap, pid=broker.pid), broker.tls_port)


# --- throughput


def shape(messages: int, settings: dict[str, str] | None = None) -> Shape:
    return Shape(messages=messages, size_bytes=SIZE_BYTES, settings=settings or {})


def with_tls(port: int, certificates: Certificates) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "ssl",
        "ssl.ca.location": certificates.ca,
    }


Figures = dict[tuple[str, str, str], list[float]]
"""Messages per second by broker, kind and transport."""


def throughput(
    brokers: list[Ports], certificates: Certificates, rounds: int, messages: int
) -> tuple[Figures, Figures]:
    speeds: Figures = defaultdict(list)
    cpu: Figures = defaultdict(list)
    with progress(rounds * len(brokers) * 4) as next_run:
        for _ in range(rounds):
            for broker in brokers:
                ways = (
                    ("plain", shape(messages)),
                    ("tls", shape(messages, with_tls(broker.tls_port, certificates))),
                )
                for transport, load in ways:
                    step = next_run(f"{broker.target.name} {transport}")
                    for run in one_round(("produce", "consume"), broker.target, load, step):
                        key = (broker.target.name, run.kind, transport)
                        speeds[key].append(run.messages_per_second)
                        if run.broker_us_per_message is not None:
                            cpu[key].append(run.broker_us_per_message)
    return speeds, cpu


def table(speeds: Figures, cpu: Figures) -> Iterator[str]:
    yield "| broker | | plaintext, messages/s | TLS, messages/s | ratio | broker CPU per message, plaintext | TLS |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for broker in ("penstock", "kafka"):
        for kind in ("produce", "consume"):
            plain, tls = (median(speeds[broker, kind, way]) for way in ("plain", "tls"))
            used = [f"{median(cpu[broker, kind, way]):.2f} us" for way in ("plain", "tls")]
            yield f"| {broker} | {kind} | {plain:,.0f} | {tls:,.0f} | {tls / plain:.2f} | {used[0]} | {used[1]} |"


# --- idle connections


def idle_memory(ports: Ports, certificates: Certificates) -> str:
    assert ports.target.pid is not None
    plain = _memory_of(ports.target.pid, int(ports.target.bootstrap.rsplit(":", 1)[1]), None)
    context = ssl.create_default_context(cafile=certificates.ca)
    tls = _memory_of(ports.target.pid, ports.tls_port, context)
    return (
        f"{IDLE_CONNECTIONS:,} idle connections take {plain:.1f} MB of the broker, and {tls:.1f} MB with TLS."
    )


def _memory_of(pid: int, port: int, context: ssl.SSLContext | None) -> float:
    before = _resident_bytes(pid)
    with ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            if context is not None:
                stack.enter_context(context.wrap_socket(connection, server_hostname="127.0.0.1"))
        time.sleep(1.0)  # the broker has answered every handshake; this lets its allocator settle
        return (_resident_bytes(pid) - before) / 1e6


def _resident_bytes(pid: int) -> int:
    used = procfs.usage(pid)
    assert used is not None
    return used.rss_bytes


def main() -> None:
    options = _options()
    try:
        libs = fetch(options.kafka_version)
        text = measure(libs, options)
    except (Unavailable, Problem) as failure:
        sys.exit(f"bench-tls: {failure}")
    CACHE.joinpath("bench").mkdir(parents=True, exist_ok=True)
    CACHE.joinpath("bench", "tls.md").write_text(text)
    if options.publish:
        page.publish("bench-tls", text)
    print(text)


def measure(libs: Path, options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        certificates = make_certificates(folder / "certificates")
        own = stack.enter_context(penstock_with_tls(folder / "penstock", certificates))
        other = stack.enter_context(kafka_with_tls(libs, folder / "kafka", certificates))
        memory = idle_memory(own, certificates)
        speeds, cpu = throughput([own, other], certificates, options.rounds, options.messages)
        rules = access_cost.cost(folder / "access")
    intro = (
        f"Penstock {penstock.__version__} and Apache Kafka {options.kafka_version} on {platform.machine()}: "
        f"{options.messages:,} messages of {SIZE_BYTES} B, acks all, medians of {options.rounds} runs in turns."
    )
    return "\n".join([intro, "", *table(speeds, cpu), "", memory, rules]) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kafka-version", default=VERSION)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
