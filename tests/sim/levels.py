"""The seeds and mutants of one level of the simulator as tests: a few in `make test`, more in `make test-long`."""

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from penstock.sim.outcome import Outcome
from penstock.sim.seeds import run_seed
from tests.sim.mutants import MUTANTS

HASH_SEEDS = ("1", "2")


class Level(NamedTuple):
    name: str
    seeds: int
    """How many seeds `make test-long` runs."""
    share: int
    """So many seeds form one test; `make test` runs the first share."""
    mutant_seeds: int
    """Mutants that the simulator finds within so many seeds are tests of `make test-long`; `make mutants` hunts them
    all."""
    quick_mutant_seeds: int
    """Mutants that it finds within so many are tests of `make test`, too."""

    def shares(self) -> pytest.MarkDecorator:
        """Gives a test the first seed of each share."""
        return pytest.mark.parametrize(
            "first",
            [
                pytest.param(first, marks=pytest.mark.long if first else ())
                for first in range(0, self.seeds, self.share)
            ],
        )

    def mutants(self) -> pytest.MarkDecorator:
        """Gives a test each mutant of the level."""
        return pytest.mark.parametrize(
            "mutant",
            [
                pytest.param(
                    mutant,
                    marks=pytest.mark.long if mutant.seeds > self.quick_mutant_seeds else (),
                    id=mutant.name,
                )
                for mutant in MUTANTS
                if mutant.level == self.name and mutant.seeds <= self.mutant_seeds
            ],
        )

    def run(self, first: int) -> list[Outcome]:
        """Runs a share. No seed may break a promise."""
        outcomes = [run_seed(seed, level=self.name) for seed in range(first, first + self.share)]
        for seed, outcome in enumerate(outcomes, first):
            failure = outcome.failure
            assert failure is None, f"seed {seed}: {failure.promise}: {failure.detail}"
        return outcomes

    def digests(self, *seeds: int) -> list[str]:
        """The digests of these seeds, in a process of their own. They must not depend on how strings hash."""
        wanted = f"[run_seed(seed, level={self.name!r}).digest for seed in {seeds}]"
        code = f"from penstock.sim.seeds import run_seed; print(*{wanted}, sep='\\n')"
        outputs = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            ).stdout
            for hash_seed in HASH_SEEDS
        }
        assert len(outputs) == 1
        return outputs.pop().split()
