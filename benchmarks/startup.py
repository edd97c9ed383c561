"""How long people wait for Penstock to start: a broker in a test, `penstock serve`, and commands.

Each figure is the smallest of several fresh processes, with the bytecode that an installed package has: a start does
the same work each time, and other programs on the machine can only make it slower. CPU is steadier than time.

    import     `from penstock import Broker`, in a process that has loaded nothing yet
    ready      `Broker()` until clients can use it
    close      `broker.close()`
    serve      `penstock serve --memory`, from the start of the process to its line "ready"
    http       the same, to the answer to the first HTTP request, which comes after "ready"
    help       `penstock --help`
    topics     `penstock topics list`

Run it alone: python benchmarks/startup.py [--json] [--embedded]; --embedded measures the first three only.
`before_after.py REVISION --only startup` compares two revisions; `--only embedded` does so with old ones, too, whose
commands had other options.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from cpu_time import cpu_ns

ROUNDS = 9
CLI = [sys.executable, "-m", "penstock"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

PROBE = """
import json, sys, time
began, began_cpu = time.perf_counter(), time.process_time()
from penstock import Broker
imported, imported_cpu, modules = time.perf_counter(), time.process_time(), len(sys.modules)
broker = Broker()
ready, ready_cpu = time.perf_counter(), time.process_time()
with open("/proc/self/status") as status:
    rss_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
broker.close()
closed = time.perf_counter()
print(json.dumps({"import ms": (imported - began) * 1e3, "import CPU ms": (imported_cpu - began_cpu) * 1e3,
                  "import modules": modules,
                  "ready ms": (ready - imported) * 1e3, "ready CPU ms": (ready_cpu - imported_cpu) * 1e3,
                  "close ms": (closed - ready) * 1e3, "memory MB": rss_kb / 1024}))
"""


def broker() -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    row: dict[str, float] = json.loads(done.stdout)
    return row


@contextmanager
def served(*options: str) -> "Iterator[tuple[subprocess.Popen[str], dict[str, str]]]":
    """`penstock serve` that is ready, and the lines that it has printed, by their first word."""
    command = [*CLI, "serve", "--memory", "--kafka", "127.0.0.1:0", *options, "--log-level", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert process.stdout is not None
        lines: dict[str, str] = {}
        while "ready" not in lines:
            word, _, rest = next(process.stdout).strip().partition(" ")
            lines[word] = rest.strip()
        yield process, lines
    finally:
        process.terminate()
        process.wait()


def serve() -> dict[str, float]:
    began = time.perf_counter()
    with served("--http", "127.0.0.1:0") as (process, lines):
        ready_ms, cpu_ms = (time.perf_counter() - began) * 1e3, cpu_ns(process.pid) / 1e6
        with urllib.request.urlopen(f"{lines['http']}/health") as answer:
            answer.read()
        http_ms, http_cpu_ms = (time.perf_counter() - began) * 1e3, cpu_ns(process.pid) / 1e6
    return {"serve ms": ready_ms, "serve CPU ms": cpu_ms, "http ms": http_ms, "http CPU ms": http_cpu_ms}


def command(name: str, *arguments: str) -> dict[str, float]:
    began = time.perf_counter()
    process = subprocess.Popen([*CLI, *arguments], stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, used = os.wait4(process.pid, 0)
    took_ms = (time.perf_counter() - began) * 1e3
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with code {process.returncode}")
    return {f"{name} ms": took_ms, f"{name} CPU ms": (used.ru_utime + used.ru_stime) * 1e3}


def one_round(bootstrap: str) -> dict[str, float]:
    return {
        **broker(),
        **serve(),
        **command("help", "--help"),
        **command("topics", "topics", "list", "--bootstrap", bootstrap),
    }


def main() -> None:
    if "--embedded" in sys.argv[1:]:
        broker()  # the first one may compile bytecode
        rows = [broker() for _ in range(ROUNDS)]
    else:
        with served("--http", "none") as (_, lines):
            one_round(lines["kafka"])
            rows = [one_round(lines["kafka"]) for _ in range(ROUNDS)]
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: min(row[name] for row in rows) for name in rows[0]}))
        return
    for name in rows[0]:
        values = sorted(row[name] for row in rows)
        print(f"{name:14} {values[0]:8.1f}   (median {values[len(values) // 2]:.1f}, up to {values[-1]:.1f})")


if __name__ == "__main__":
    main()
