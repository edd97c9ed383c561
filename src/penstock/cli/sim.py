"""`penstock sim`: seeds of the simulator, one after the other."""

import time
from collections import Counter
from typing import Any

import click

from penstock.cli.help import examples
from penstock.cli.output import note, show, show_json, table
from penstock.cli.problem import Problem
from penstock.sim.outcome import Outcome
from penstock.sim.seeds import CORE, LEVELS, MACHINES, run_seed

PROGRESS_EVERY_S = 2.0
LAST_EVENTS = 40


@click.command(
    epilog=examples(
        "penstock sim --seeds 200",
        "penstock sim --level node --seeds 20 --nodes 5",
        "penstock sim --seed 4711 --trace",
        "penstock sim --seconds 600 --json",
    )
)
@click.option("--seeds", type=click.IntRange(1), default=None, help="How many; 100, or 1 with --seed.")
@click.option("--seed", type=click.IntRange(0), default=None, help="The first one.  [default: 0]")
@click.option("--seconds", type=click.FloatRange(0), default=None, help="As many as this time allows.")
@click.option("--level", type=click.Choice(LEVELS), default=CORE, show_default=True,
              help="What is simulated.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(3, 200), default=None,
              help="How many: 3 or 5, at the level machines up to 200; else the seed decides.")  # fmt: skip
@click.option("--trace", is_flag=True, help="Print everything that happened.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sim(
    seeds: int | None,
    seed: int | None,
    seconds: float | None,
    level: str,
    nodes: int | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Run the cluster's own code in a simulated world and look for broken promises.

    Virtual time, networks and disks, with faults that each seed mixes in its own way: crashes, power cuts, pauses,
    cuts, full and failing disks, changes of members. A seed reproduces exactly. The level "core" has one Raft
    group with its log, "node" whole nodes, "ring" the workers of a clique, "transactions" whole nodes with
    transactional programs, "groups" whole nodes with the members of a consumer group, "machines" several nodes on each
    machine; twice, a machine loses power. The exit code is 1 when a promise is broken.
    """
    if nodes not in (None, 3, 5) and level != MACHINES:
        raise click.UsageError(f"--nodes {nodes}: 3 or 5, or --level {MACHINES}")
    count = seeds or (1 if seed is not None and seconds is None else 100)
    run = Run(level, nodes, trace, quiet=as_json)
    run.do(seed or 0, None if seconds is not None and seeds is None else count, seconds)
    if as_json:
        show_json(run.facts())
    else:
        run.show()
    if run.failed is not None:
        raise Problem(
            f"seed {run.failed.seed} breaks a promise",
            f"penstock sim --level {level} --seed {run.failed.seed} --trace",
        )


class Run:
    """Many seeds, until one fails."""

    def __init__(self, level: str, nodes: int | None, trace: bool, *, quiet: bool) -> None:
        self._level = level
        self._nodes = nodes
        self._trace = trace
        self._quiet = quiet
        self._counts: Counter[str] = Counter()
        self._virtual_s = 0.0
        self._began_at = time.monotonic()
        self._said_at = self._began_at
        self._done = 0
        self._digests = 0
        self.failed: Outcome | None = None

    def do(self, first: int, count: int | None, seconds: float | None) -> None:
        while self.failed is None and (count is None or self._done < count):
            if seconds is not None and self._elapsed_s() >= seconds:
                return
            self._take(
                run_seed(first + self._done, level=self._level, nodes=self._nodes, tracing=self._trace)
            )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_at

    def _take(self, outcome: Outcome) -> None:
        self._done += 1
        self._counts.update(outcome.counts)
        self._virtual_s += outcome.virtual_s
        self._digests = (self._digests * 31 + outcome.digest) % 2**32
        if self._trace and not self._quiet:
            show(*outcome.trace)
        if outcome.failure is not None:
            self.failed = outcome
        elif not self._quiet and time.monotonic() - self._said_at > PROGRESS_EVERY_S:
            self._said_at = time.monotonic()
            note(f"{self._done} seeds, {self._done / self._elapsed_s():.1f} a second")

    # --- telling

    def show(self) -> None:
        rows = [
            [name, self._counts[name], round(self._counts[name] / self._done, 1)]
            for name in sorted(self._counts)
        ]
        show(table("what happened", "times", "per seed", rows=rows, numbers=["times", "per seed"]))
        show(
            "",
            f"{self._done} seeds of level {self._level}, {self._virtual_s:,.0f} s of virtual time in "
            f"{self._elapsed_s():.1f} s; digest {self._digests:08x}",
        )
        if self.failed is not None and self.failed.failure is not None:
            failure = self.failed.failure
            show("", f"seed {self.failed.seed}: {failure.promise}", f"  {failure.detail}", "")
            if not self._trace:
                show(*failure.last_events[-LAST_EVENTS:])

    def facts(self) -> dict[str, Any]:
        failed = self.failed
        return {
            "level": self._level,
            "seeds": self._done,
            "seconds": round(self._elapsed_s(), 3),
            "virtual_seconds": round(self._virtual_s, 3),
            "digest": f"{self._digests:08x}",
            "counts": dict(sorted(self._counts.items())),
            "failure": None
            if failed is None or failed.failure is None
            else {
                "seed": failed.seed,
                "promise": failed.failure.promise,
                "detail": failed.failure.detail,
                "last_events": failed.failure.last_events,
            },
        }
