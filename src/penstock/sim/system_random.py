"""Seeded randomness for code that takes it from the operating system: topic ids, incarnations of data folders."""

import os
import random as random_module
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any


@contextmanager
def seeded_system(random: Random) -> Iterator[None]:
    """While the context lasts, uuid4 and secrets draw from `random`. Not for two threads."""
    module: Any = random_module
    before = os.urandom, module._urandom
    os.urandom = module._urandom = random.randbytes
    try:
        yield
    finally:
        os.urandom, module._urandom = before
