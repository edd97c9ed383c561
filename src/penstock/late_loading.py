"""Modules that a broker loads when they are first needed, by one thread at a time.

Several threads do that: the event loops of the brokers of a process, and a thread that loads the web stack while its
broker serves. Python locks each module while it is imported. A thread that imports a package, whose `__init__` imports
a module of it, and a thread that imports this module, which imports the package first, would wait for each other;
Python raises an error in one of them instead. So all of them hold `LOADING`, from before the first import to the end.
"""

from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LOADING = RLock()


class late(Generic[T]):
    """An attribute whose function loads modules, and is called when the attribute is first used. An object belongs to
    one thread. (`cached_property` has a lock of its own in Python 3.11, for which the threads of two objects could wait
    while they hold `LOADING`.)"""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, owner: object, kind: type) -> T:
        with LOADING:
            made = vars(owner)[self._name] = self._make(owner)
        return made
