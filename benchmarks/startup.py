"""How long a test waits for a broker: import, start, first message, close; and what an idle broker weighs.

Each figure is the median of several fresh processes, with the bytecode that an installed package has.
Run it alone: python benchmarks/startup.py [--json]
"""

import json
import os
import statistics
import subprocess
import sys

ROUNDS = 7

PROBE = """
import json, os, time
began = time.perf_counter()
from penstock import Broker
imported = time.perf_counter()
broker = Broker()
ready = time.perf_counter()
with open("/proc/self/status") as status:
    rss_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
broker.close()
closed = time.perf_counter()
print(json.dumps({"import ms": (imported - began) * 1e3, "ready ms": (ready - imported) * 1e3,
                  "close ms": (closed - ready) * 1e3, "memory MB": rss_kb / 1024}))
"""


def probe() -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, env=environment
    )
    row: dict[str, float] = json.loads(done.stdout)
    return row


def main() -> None:
    probe()  # the first one may compile bytecode
    rows = [probe() for _ in range(ROUNDS)]
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: statistics.median(row[name] for row in rows) for name in rows[0]}))
        return
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:10} {statistics.median(values):8.1f}   ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
