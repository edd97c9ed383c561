"""Clients in a process that was forked after they were made.

A forked process inherits the memory of its parent, but none of its threads. A client would wait for threads that do not
exist, and would share its connections with the parent. So it raises at once instead. The destructor of a librdkafka
client would also wait for its threads and then crash, so the child never runs it.
"""

import os
from typing import Any, Final, TypeVar
from weakref import WeakSet

from penstock.client.errors import ClientError

ADVICE: Final = (
    "this client was made before the process was forked: make another one in each process, after the fork "
    "(multiprocessing: in the child's function, or with the start method 'spawn'; gunicorn: in post_fork, or without "
    "--preload)"
)


_forks = 0
"""How many forks lie between the first process and this one. A comparison with it costs less than getpid, and every
call of a client makes one."""


class ForkGuard:
    """Knows the process in which it was made."""

    __slots__ = ("_made_after",)

    def __init__(self) -> None:
        self._made_after = _forks

    @property
    def is_forked(self) -> bool:
        return self._made_after != _forks

    def check(self) -> None:
        if self._made_after != _forks:
            raise ClientError(ADVICE)


Handle = TypeVar("Handle")
_handles: WeakSet[Any] = WeakSet()


def kept_in_child(handle: Handle) -> Handle:
    """The same object. A process that is forked from this one never destroys it."""
    _handles.add(handle)
    return handle


def _after_fork() -> None:
    import ctypes  # only processes that fork need it

    global _forks
    _forks += 1
    for handle in list(_handles):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


os.register_at_fork(after_in_child=_after_fork)
