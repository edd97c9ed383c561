"""Penstock's own figures at an earlier revision and in this working tree (or at a later one), measured in turns.

This machine and its neighbours may change their speed at any moment, so the two versions alternate: in every round each
of them runs the same commands once, and the version that begins changes from round to round. The table has the median
of each figure, the ratio, and in how many rounds the figure was worse by more than --tolerance. A figure counts as
"worse" if its ratio is, and at least three quarters of the rounds agree; everything else is the machine's noise.

Run it alone: python benchmarks/before_after.py REVISION [--after LATER] [--rounds 8] [--only requests,startup]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
TREE = Path(__file__).parents[1]
BENCH = ("-c", "from penstock.cli import main; main()", "bench")
# With several rounds, `bench` warms the broker up first, and the last round counts: the first request of a kind loads
# its modules, which belongs to `startup`. The CPU of a process is counted in ticks of 10 ms, and three million messages
# take dozens of them.
LOG_LOAD = ("-t", "3", "-n", "3000000", "--rounds", "2")
COMMANDS = {
    "log": (*BENCH, "all", "--json", *LOG_LOAD),
    "queue": (*BENCH, "queue", "--json", "-t", "3", "-n", "200000"),
    "push": (*BENCH, "push", "--json", "-t", "3", "--subscribers", "1,100"),
    "startup": (str(TREE / "benchmarks" / "startup.py"), "--json"),
    "embedded": (str(TREE / "benchmarks" / "startup.py"), "--json", "--embedded"),
    "http": (str(TREE / "benchmarks" / "http_publish.py"), "--json", "--turns", "3"),
    "requests": (str(TREE / "benchmarks" / "request_cost.py"), "--json", "--turns", "3"),
}
BIGGER_IS_BETTER = "per_second"
LEFT_OUT = (
    *("messages", "bytes", "subscribers", "consumers", "rate_per_second", "burst_messages"),  # state the load
    *(
        "seconds",
        "megabytes_per_second",
        "client_cpu_seconds",
        "broker_cpu_seconds",
        "broker_rss_bytes",
    ),  # repeat
    *("p999_ms", "max_ms"),  # a few messages of thousands: chance
)
NAMES = ("kind", "via", "subscribers")
"""Fields that tell the runs of one output from each other."""


def figures(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Every measured number in a JSON value, with a name made of the path to it."""
    if isinstance(value, dict):
        own = " ".join(str(value[key]) for key in NAMES if key in value)
        for key, inner in value.items():
            if key not in LEFT_OUT:
                yield from figures(inner, " ".join(filter(None, (name, own, key))))
    elif isinstance(value, list):
        for inner in value:
            yield from figures(inner, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def measure(tree: Path, command: str) -> Iterator[tuple[str, float]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(tree / "src")
    done = subprocess.run(
        [sys.executable, *COMMANDS[command]], env=environment, capture_output=True, text=True, check=True
    )
    printed = json.loads(done.stdout)
    yield from figures(printed.get("runs", printed), command)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with the revision and its compiled modules."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", tree, revision], cwd=TREE, check=True
        )
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, capture_output=True)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=TREE, check=True)


def alternate(
    before: Path, after: Path, rounds: int, commands: list[str]
) -> dict[str, tuple[list[float], list[float]]]:
    values: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    commands = list(commands)
    for index in range(rounds):
        for command in tuple(commands):
            try:
                sides = [dict(measure(tree, command)) for tree in order((before, after), index)]
            except subprocess.CalledProcessError as failed:
                commands.remove(command)
                last_line = (failed.stderr or "").strip().splitlines()[-1:]
                print(f"{command} is left out, one of the versions fails: {last_line}", file=sys.stderr)
                continue
            old, new = order(sides, index)
            for name in (name for name in old if name in new):
                values[name][0].append(old[name])
                values[name][1].append(new[name])
            print(f"round {index + 1} of {rounds}: {command}", file=sys.stderr)
    return values


def order(pair: Sequence[T], index: int) -> Sequence[T]:
    """Every other round the other way round."""
    return pair if index % 2 == 0 else pair[::-1]


def report(values: dict[str, tuple[list[float], list[float]]], tolerance: float) -> int:
    """Prints the table. How many figures are worse."""
    count = 0
    print(f"{'figure':<52} {'before':>14} {'after':>14} {'ratio':>7} {'rounds':>7}")
    for name, (old, new) in values.items():
        before, after = statistics.median(old), statistics.median(new)
        worse = [_is_worse(name, *pair, tolerance) for pair in zip(old, new, strict=True)]
        bad = _is_worse(name, before, after, tolerance) and sum(worse) * 4 >= len(worse) * 3
        count += bad
        ratio = after / before if before else 1.0
        print(
            f"{name:<52} {before:>14,.3f} {after:>14,.3f} {ratio:>7.3f} {sum(worse):>3}/{len(worse):<3}"
            + ("  worse" if bad else "")
        )
    return count


def _is_worse(name: str, before: float, after: float, tolerance: float) -> bool:
    if BIGGER_IS_BETTER in name:
        return after < before * (1 - tolerance)
    return after > before * (1 + tolerance)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="the earlier revision, as git names it")
    parser.add_argument(
        "--after", metavar="REVISION", help="the later revision [default: the working tree as it is]"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=0.05, help="of the ratio [default: 0.05]")
    parser.add_argument(
        "--only", default=",".join(COMMANDS), help="some of the commands [default: %(default)s]"
    )
    options = parser.parse_args()
    with ExitStack() as trees:
        before = trees.enter_context(checked_out(options.revision))
        after = trees.enter_context(checked_out(options.after)) if options.after else TREE
        values = alternate(before, after, options.rounds, options.only.split(","))
    return 1 if report(values, options.tolerance) else 0


if __name__ == "__main__":
    sys.exit(main())
