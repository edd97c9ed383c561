"""Which faults a seed has, and how many: each seed draws its own mix.

Most bugs need two or three faults close together, and a mix with a little of everything rarely has that. So each seed
leaves most faults out and has many of the others (swarm testing).

Crashes are aimed. A crash at a random moment mostly hits a replica that has nothing to lose. The chances below crash it
between a write and its flush, and right after it has made a promise to another replica.
"""

from random import Random

import msgspec

NEVER = 0.0


class FaultMix(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are per virtual second and for the whole world, chances per occasion, times in seconds."""

    # the network
    latency_s: float
    loss: float
    repeats: float
    late: float
    """How often a message is delayed, so that later ones overtake it."""
    late_s: float
    late_answers: float
    """How often a reply to an append takes so long that the leader may be in its second term when it arrives."""
    # disks and clocks
    flush_s: float
    stuck_flush: float
    """How often a flush takes many times as long."""
    jitter_spread: float
    """How far election timeouts differ. Small values make candidates campaign at the same time."""
    clock_drift: float
    # aimed crashes
    crash_at_flush: float
    crash_after_vote: float
    crash_after_ack: float
    crash_new_leader: float
    isolate_writer: float
    """Isolates a leader right after it has taken a batch."""
    isolate_new_leader: float
    """Isolates a leader right after it was elected: its lease then rests on the beginning of its term alone."""
    crash_in_compaction: float
    """A machine that writes a compacted segment loses power within the next few operations of its disk: per write, and
    more often when it puts the segment in place."""
    # faults at random moments
    crash: float
    power_cut: float
    blackout: float
    """All machines lose power at once."""
    pause: float
    isolate: float
    cut: float
    """One direction of one link."""
    slow_disk: float
    full_disk: float
    broken_flush: float
    rot: float
    wipe: float
    transfer: float
    reconfigure: float
    delete_prefix: float
    lull: float
    """Producers pause, and followers do not hear the leader. While writes are under way, the log of a follower that
    hears nothing is too short for any vote; in a lull only leases keep it from being elected."""
    lost_connection: float
    """A follower's connection with its leader breaks: it campaigns as soon as the lease lets it."""
    # clients and restarts
    write_every_s: float
    restart_s: float
    """How long a crashed replica stays down at most."""


def draw(random: Random) -> FaultMix:
    """A mix for one seed."""

    def rate(*some: float) -> float:
        """Half of them not at all."""
        return random.choice((NEVER,) * len(some) + some)

    reliable = random.random() < 0.3
    return FaultMix(
        latency_s=random.choice((0.001, 0.01, 0.04)),
        loss=NEVER if reliable else random.choice((NEVER, 0.01, 0.05, 0.2)),
        repeats=NEVER if reliable else random.choice((NEVER, 0.02, 0.2)),
        late=NEVER if reliable else random.choice((NEVER, 0.05, 0.3)),
        late_s=random.choice((0.1, 0.5, 2.0)),
        late_answers=NEVER if reliable else rate(0.1, 0.4),
        flush_s=random.choice((0.001, 0.01, 0.05, 0.2)),
        stuck_flush=rate(0.02, 0.1),
        jitter_spread=random.choice((0.02, 0.1, 0.3, 1.0)),
        clock_drift=random.choice((NEVER, 0.04)),
        crash_at_flush=rate(0.01, 0.05),
        crash_after_vote=rate(0.1, 0.5),
        crash_after_ack=rate(0.005, 0.02),
        crash_new_leader=rate(0.2, 0.6),
        isolate_writer=rate(0.03, 0.15),
        crash=rate(0.2, 1.0),
        power_cut=rate(0.2, 1.0),
        blackout=rate(0.1, 0.3),
        pause=rate(0.3, 1.0),
        isolate=rate(0.3, 1.0),
        cut=rate(0.5, 2.0),
        slow_disk=rate(0.3),
        full_disk=rate(0.2),
        broken_flush=rate(0.2),
        rot=rate(0.2),
        wipe=rate(0.1, 0.3),
        transfer=rate(0.5, 3.0),
        reconfigure=rate(0.5, 3.0),
        delete_prefix=rate(0.5, 2.0),
        write_every_s=random.choice((0.03, 0.06, 0.15)),
        restart_s=random.choice((0.1, 0.5, 1.5)),
        # Last, so that older seeds keep their mix.
        crash_in_compaction=rate(0.01, 0.05),
        isolate_new_leader=rate(0.1, 0.5),
        lull=rate(0.2, 0.6),
        lost_connection=rate(2.0, 10.0),
    )
