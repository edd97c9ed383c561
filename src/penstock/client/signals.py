"""SIGTERM and Ctrl-C as a graceful end; the second one ends the process at once.

Invariants:
 1. The first signal calls `stop`. From then on the operating system's default applies to both signals, so that the
    second one ends the process even if the event loop, or a handler, hangs.
 2. A handler that other code has installed meanwhile stays: only our own is replaced at the end.
 3. A signal that was ignored before (a shell starts background jobs so) is not ignored again once it has asked for
    the end.

Python runs signal handlers in the main thread, between two bytecodes, also while a coroutine blocks the event loop. The
loop's own `add_signal_handler` would not: its callbacks wait for the loop.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Only in the main thread: Python allows no other thread to handle signals. In others it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    is_asked = False

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal is_asked
        is_asked = True
        _replace(on_signal, dict.fromkeys(ENDING_SIGNALS, signal.SIG_DFL))  # (1)
        stop()

    for number in ENDING_SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        ours = signal.SIG_DFL if is_asked else on_signal
        _replace(ours, {number: _restored(handler, is_asked) for number, handler in before.items()})


def _replace(ours: object, handlers: dict[int, Any]) -> None:
    """Sets these handlers where ours is in place (2)."""
    for number, handler in handlers.items():
        if signal.getsignal(number) == ours:
            signal.signal(number, handler)


def _restored(before: Any, is_asked: bool) -> Any:
    """`before` is None for a handler that was not set from Python: it cannot be set again."""
    return signal.SIG_DFL if before is None or (is_asked and before == signal.SIG_IGN) else before
