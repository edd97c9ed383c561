"""How long tests wait for what must happen, on a machine that may be busy with something else."""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 40.0
_LOOK_SECONDS = 0.05


def eventually(claim: Callable[[], object], what: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when the claim holds. For what another process does: nothing tells this one about it."""
    deadline = time.monotonic() + patience_seconds
    while not claim():
        assert time.monotonic() < deadline, f"in {patience_seconds:.0f} s it did not happen: {what}"
        time.sleep(_LOOK_SECONDS)
