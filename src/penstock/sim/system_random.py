"""Seeded randomness for code that takes it from the operating system: topic ids, incarnations of data folders."""

import os
import random as random_module
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any


@contextmanager
def seeded_system(random: Random) -> Iterator[None]:
    """While the context lasts, uuid4 and secrets draw from `random` in this thread."""
    module: Any = random_module
    before = real, _ = os.urandom, module._urandom
    own = threading.get_ident()

    def urandom(count: int) -> bytes:
        return random.randbytes(count) if threading.get_ident() == own else real(count)

    os.urandom = module._urandom = urandom
    try:
        yield
    finally:
        os.urandom, module._urandom = before
