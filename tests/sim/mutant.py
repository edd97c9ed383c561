"""What a seeded bug is: a small change of production code, and what goes wrong with it."""

from typing import Any, NamedTuple

from penstock.sim.seeds import CORE


class Change(NamedTuple):
    """`old` becomes `new` in a function of this class or module."""

    owner: Any
    function: str
    old: str
    new: str


class Mutant(NamedTuple):
    name: str
    breaks: str
    """What goes wrong with it."""
    changes: tuple[Change, ...]
    level: str = CORE
    seeds: int = 200
    """Within so many it must be found: some five to ten times what it took when this was written."""
