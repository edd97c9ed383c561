"""One attack: what is prepared, what the attacker does, and what it may cost the node."""

from collections.abc import Callable

import msgspec

from tools.hostile.attack import Attack
from tools.hostile.brokers import CLIENT_MEMORY_BYTES, HTTP_MEMORY_BYTES, MEBIBYTE
from tools.hostile.setups import Setup

UNCOUNTED_BYTES = 160 * MEBIBYTE
"""Memory beside the two limits: 128 MiB that the allocator keeps when they were freed (`penstock serve` sets that), and
connections, partitions and groups, which have limits of their own."""
MEMORY_BYTES = CLIENT_MEMORY_BYTES + HTTP_MEMORY_BYTES + UNCOUNTED_BYTES

Step = Callable[[Attack], None]


def nothing(attack: Attack) -> None:
    """For scenarios that need no preparation."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    name: str
    does: str
    """What one client does, for people."""
    attack: Step
    prepare: Step = nothing
    """Runs before anything is measured."""
    nodes: int = 1
    flags: tuple[str, ...] = ()
    """Of `penstock serve`, beside the memory limits."""
    setup: Setup = Setup.OPEN
    open_files: int | None = None
    memory_bytes: int = MEMORY_BYTES
    """The most that the attack may add to the memory of a node."""
    keeps_bytes: int = UNCOUNTED_BYTES
    """The most that may remain afterwards: that which the allocator keeps, and what the attacker has created."""
    seconds: float = 40.0
    """Then the harness closes the attacker's connections."""
    is_seeded: bool = False
    """Made by the generator: bounded by its seconds and count."""
