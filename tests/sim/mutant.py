"""A seeded bug: a small change of production code, and its consequence."""

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
    """The consequence, in one sentence."""
    changes: tuple[Change, ...]
    level: str = CORE
    seeds: int = 200
    """The simulator must find it within so many: five to ten times as many as it took when this was written."""
