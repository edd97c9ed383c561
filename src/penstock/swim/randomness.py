"""The source of randomness: `random.Random` fits, and a seeded one makes every run repeatable."""

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Randomness(Protocol):
    def random(self) -> float:
        """A number from 0 up to but not including 1."""
        ...

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, items: MutableSequence[Any], /) -> None: ...

    def sample(self, items: Sequence[T], count: int, /) -> list[T]: ...
