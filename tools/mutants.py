"""How many seeds the simulator needs to find each seeded bug. Exit code 1 if it misses one within its bound.

python -m tools.mutants [--level core|node|ring|transactions] [NAME...]
"""

import argparse
import sys
import time

from penstock.sim.seeds import LEVELS
from tests.sim.mutants import MUTANTS, Mutant, seeds_to_detection


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=LEVELS)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    chosen = [
        m
        for m in MUTANTS
        if options.level in (None, m.level) and (not options.names or m.name in options.names)
    ]
    print(f"{'mutant':<36} {'level':<12} {'seeds':>6} {'bound':>6} {'time':>8}   what gave it away")
    missed = [mutant for mutant in chosen if not _hunt(mutant)]
    print(f"\n{len(chosen) - len(missed)} of {len(chosen)} found")
    return 1 if missed else 0


def _hunt(mutant: Mutant) -> bool:
    began_at = time.monotonic()
    found = seeds_to_detection(mutant)
    seconds = time.monotonic() - began_at
    seeds, said = ("missed", "") if found is None else (str(found[0]), found[1].promise)
    print(
        f"{mutant.name:<36} {mutant.level:<12} {seeds:>6} {mutant.seeds:>6} {seconds:>6.1f} s   {said}",
        flush=True,
    )
    return found is not None


if __name__ == "__main__":
    sys.exit(main())
