"""Which faults a seed of the ring level has, and how many: as in `fault_mix.py`, most are left out and the others are
frequent."""

from random import Random

import msgspec

NEVER = 0.0


class RingMix(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are per virtual second and for the whole world, chances per occasion, times in seconds."""

    # the network
    latency_s: float
    loss: float
    repeats: float
    late: float
    """How often a message is delayed, so that later ones overtake it."""
    late_s: float
    """How long at most: longer than a lease, so that heartbeats of members arrive that were removed long ago."""
    # clocks and disks
    clock_drift: float
    """How much faster or slower than the world's clock one runs at most: two may differ by almost LEASE_MARGIN."""
    write_s: float
    failed_write: float
    """How often a coordinator's write fails."""
    # members
    crash: float
    restart_s: float
    """How long a crashed worker stays down at most; many come back before their lease has ended."""
    leave: float
    newcomer: float
    """A worker with a new name joins for a while."""
    namesake: float
    """A second process with the name of one that runs."""
    pause: float
    """A worker sleeps, mostly past its lease."""
    deaf: float
    """A worker does not reach the coordinator any more; its messages still come."""
    drop_session: float
    # nodes
    fail_over: float
    coordinator_pause: float
    leader_crash: float
    leader_deaf: float
    """The leader of the partition does not reach the coordinator: it knows an old table."""
    # work
    publish_every_s: float
    keys: int
    handler_s: float
    long_handler: float
    """How often a handler runs for longer than a lease."""
    blocking: float
    """How often a handler cannot be cancelled."""
    failing: float
    """How often a handler raises, and is tried again."""
    callback_s: float
    """How long on_acquire and on_release take at most."""


def draw_ring_mix(random: Random) -> RingMix:
    """A mix for one seed."""

    def rate(*some: float) -> float:
        """Half of them not at all."""
        return random.choice((NEVER,) * len(some) + some)

    reliable = random.random() < 0.3
    return RingMix(
        latency_s=random.choice((0.001, 0.01, 0.05)),
        loss=NEVER if reliable else random.choice((NEVER, 0.02, 0.1, 0.3)),
        repeats=NEVER if reliable else random.choice((NEVER, 0.05, 0.3)),
        late=NEVER if reliable else random.choice((NEVER, 0.05, 0.3)),
        late_s=random.choice((0.3, 1.5, 6.0)),
        clock_drift=random.choice((NEVER, 0.024, 0.024)),
        write_s=random.choice((0.001, 0.02, 0.1)),
        failed_write=rate(0.02, 0.2),
        crash=rate(0.1, 0.3),
        restart_s=random.choice((0.2, 1.0, 4.0)),
        leave=rate(0.1, 0.3),
        newcomer=rate(0.05, 0.15),
        namesake=rate(0.1),
        pause=rate(0.1, 0.4),
        deaf=rate(0.1, 0.4),
        drop_session=rate(0.1, 0.4),
        fail_over=rate(0.1, 0.4),
        coordinator_pause=rate(0.1),
        leader_crash=rate(0.05, 0.2),
        leader_deaf=rate(0.1, 0.3),
        publish_every_s=random.choice((0.03, 0.1)),
        keys=random.choice((2, 6, 12)),
        handler_s=random.choice((0.005, 0.05, 0.2)),
        long_handler=rate(0.02, 0.1),
        blocking=random.choice((NEVER, 0.3)),
        failing=rate(0.05, 0.2),
        callback_s=random.choice((NEVER, 0.01, 0.3)),
    )
