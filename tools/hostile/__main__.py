"""Hostile clients against real nodes, beside a canary of honest ones. Exit code 1 if a node died, lost an acked record,
leaked, logged a bug or overran a memory limit; waiting times are figures only.

python -m tools.hostile                                    every scenario, then the generator, in about ten minutes
python -m tools.hostile --list                             the scenarios
python -m tools.hostile --only http-chunks                 some of them (as often as needed)
python -m tools.hostile --only kafka-requests --seed 7     other attacks of the generator
"""

import argparse
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from rich.status import Status

from penstock.cli.output import console, table
from tools.hostile.attack import Plan
from tools.hostile.generator.table import SURFACES
from tools.hostile.report import as_json, draw, explain, write_page
from tools.hostile.run import Outcome, run_scenario
from tools.hostile.scenario import Scenario
from tools.hostile.scenarios.table import SCENARIOS

ALL = (*SCENARIOS, *SURFACES)
GENERATOR_SECONDS = 100.0
OPEN_FILES = 16_384
"""An attacker holds thousands of connections."""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, scenarios: Sequence[Scenario] = ALL) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        console().print(
            table("scenario", "one client does", rows=[(one.name, one.does) for one in scenarios])
        )
        return 0
    chosen = [one for one in scenarios if not options.only or one.name in options.only]
    unknown = set(options.only) - {one.name for one in scenarios}
    if unknown or not chosen:
        _complain(f"no scenario {', '.join(sorted(unknown))}: --list shows all")
        return 2
    if options.write and options.only:
        _complain("--write needs all scenarios: leave --only out")
        return 2
    _raise_file_limit()
    former = signal.signal(signal.SIGTERM, _interrupt)
    outcomes: list[Outcome] = []
    code = 0
    try:
        _run(chosen, options, outcomes)
    except KeyboardInterrupt:
        _complain("interrupted: all processes were ended")
        code = INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, former)
    _show(outcomes, options)
    return code or int(any(one.problems for one in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this scenario")
    parser.add_argument("--list", action="store_true", help="list the scenarios and run none")
    parser.add_argument("--seed", type=int, default=0, help="of the generator (0)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=GENERATOR_SECONDS,
        help="for all of the generator's attacks together (100)",
    )
    parser.add_argument("--first", type=int, default=0, help="the number of the generator's first attack (0)")
    parser.add_argument("--count", type=int, help="attacks of the generator on each surface (as time allows)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="write the table to docs/hardening.md, too")
    return parser


def _run(chosen: Sequence[Scenario], options: argparse.Namespace, outcomes: list[Outcome]) -> None:
    """Appends to `outcomes` as they come, so that an interruption keeps them."""
    surfaces = sum(one.is_seeded for one in chosen)
    plan = Plan(options.seed, options.first, options.count, options.seconds / max(surfaces, 1))
    told = console(stderr=True)
    for number, scenario in enumerate(chosen, 1):
        title = f"{number}/{len(chosen)} {scenario.name}"
        with told.status(title) as status:
            outcome = run_scenario(scenario, plan, partial(_tell, status, title))
        outcomes.append(outcome)
        told.print(f"{title}: {'FAILED' if outcome.problems else 'held'}")


def _tell(status: Status, title: str, step: str) -> None:
    status.update(f"{title}: {step}")


def _show(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.buffer.write(as_json(outcomes, options.seed) + b"\n")
        sys.stdout.flush()
    elif outcomes:
        console().print(draw(outcomes))
        console().print(explain(outcomes), markup=False, soft_wrap=True)
    if options.write and len(outcomes) == len(ALL):  # an interrupted run keeps the page of the last whole one
        write_page(outcomes, options.seed)


def _complain(problem: str) -> None:
    console(stderr=True).print(f"error: {problem}", markup=False)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
