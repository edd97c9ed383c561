"""The CPU of Penstock's Python client, and of the broker, for one message that is published with confirmation, and for
one job that is received and acked: in microseconds, medians of several turns.

CPU time, since throughput says little while other programs run; with a core for each, the slower side's figure is the
limit. The client's figure is that of all its threads, also librdkafka's.

    python benchmarks/client_cost.py [--json] [--turns 7] [--profile publish|work]
    PYTHONPATH=OTHER_TREE/src python benchmarks/client_cost.py       the same for another tree
"""

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from cpu_time import cpu_ns
from penstock_launcher import Penstock

from penstock.client import Client

TURNS = 7
MESSAGES = 20_000
SIZE_BYTES = 100
PREFETCH = 1_000
SHOWN = 30


def publish(client: Client, count: int) -> None:
    body = b"x" * SIZE_BYTES
    for _ in range(count):
        client.publish_soon("jobs", body)
    client.flush()


def work_off(client: Client, count: int) -> None:
    with client.queue("workers", topic="jobs", prefetch=PREFETCH) as jobs:
        for done, job in enumerate(jobs, 1):
            job.ack()
            if done == count:
                break
        jobs.flush()


LOADS: dict[str, Callable[[Client, int], None]] = {"publish": publish, "work": work_off}


def turn(load: Callable[[Client, int], None], client: Client, pid: int) -> dict[str, float]:
    """Microseconds for each message."""
    own, broker, began = time.process_time_ns(), cpu_ns(pid), time.perf_counter()
    load(client, MESSAGES)
    took = time.perf_counter() - began
    own, broker = time.process_time_ns() - own, cpu_ns(pid) - broker
    return {
        "client": own / 1000 / MESSAGES,
        "broker": broker / 1000 / MESSAGES,
        "messages/s": MESSAGES / took,
    }


def measure(turns: int, profiled: str | None) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOADS}
    with tempfile.TemporaryDirectory() as folder:
        node = Penstock(Path(folder))
        node.start()
        try:
            with Client(node.bootstrap) as client:
                client.admin.create_topic("jobs")
                client.admin.create_queue("workers", topic="jobs")
                for number in range(turns + 1):
                    for name, load in LOADS.items():
                        if name == profiled and number:
                            profile = cProfile.Profile()
                            profile.runcall(load, client, MESSAGES)
                            pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)
                            continue
                        figures = turn(load, client, node.pid)
                        if number:  # the first turn is for code that is loaded on demand
                            found[name].append(figures)
        finally:
            node.stop()
    return {
        name: {kind: median(one[kind] for one in rows) for kind in rows[0]}
        for name, rows in found.items()
        if rows
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument(
        "--profile", choices=list(LOADS), help="the calling thread's functions, instead of figures"
    )
    options = parser.parse_args()
    values = measure(options.turns, options.profile)
    if options.json:
        print(json.dumps(values))
        return
    for name, figures in values.items():
        print(name, "  ".join(f"{kind} {value:,.1f}" for kind, value in figures.items()))


if __name__ == "__main__":
    main()
