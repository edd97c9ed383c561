"""How long tests wait for an event, on a machine that may be busy with something else."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05


def eventually(claim: Callable[[], object], what: str, deadline_seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when the claim holds. For events in other processes, which this process can only poll."""
    deadline = time.monotonic() + deadline_seconds
    while not claim():
        assert time.monotonic() < deadline, f"in {deadline_seconds:.0f} s it did not happen: {what}"
        time.sleep(_POLL_SECONDS)
