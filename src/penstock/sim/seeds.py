"""Running seeds: one, or many."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.log import votes
from penstock.node import housekeeping
from penstock.sim.cluster import ClusterWorld
from penstock.sim.consumer_world import ConsumerWorld
from penstock.sim.group import GroupWorld
from penstock.sim.outcome import Failure, Outcome, Violation
from penstock.sim.ring_gossip import GossipWorld
from penstock.sim.ring_world import RingWorld
from penstock.sim.transaction_world import TransactionWorld

CORE = "core"
NODE = "node"
RING = "ring"
TRANSACTIONS = "transactions"
GROUPS = "groups"
LEVELS = (CORE, NODE, RING, TRANSACTIONS, GROUPS)

World = GroupWorld | ClusterWorld | RingWorld | GossipWorld

_CLUSTERS: dict[str, type[GroupWorld | ClusterWorld]] = {
    CORE: GroupWorld,
    NODE: ClusterWorld,
    TRANSACTIONS: TransactionWorld,
    GROUPS: ConsumerWorld,
}

GOSSIP_EVERY = 5
"""One of so many seeds of the ring level is a clique without a coordinator."""

SMALLER = (
    # A store of votes that is rewritten after a few dozen elections and not after hundreds.
    (votes, "MIN_FILE_SIZE", 3072),
    # Retention, compaction and the scrub of old bytes.
    (housekeeping, "ROUND_SECONDS", 0.4),
    (housekeeping, "RETENTION_GRACE_MS", 300),
    (housekeeping, "SCRUB_SECONDS", 2.0),
)


def run_seed(seed: int, *, level: str = CORE, nodes: int | None = None, tracing: bool = False) -> Outcome:
    """One seed, from its beginning to its end or to the first promise that is broken."""
    with _small_world():
        return _run(_make_world(seed, level, nodes, tracing), level, tracing)


def _make_world(seed: int, level: str, nodes: int | None, tracing: bool) -> World:
    if level == RING:
        kind = GossipWorld if seed % GOSSIP_EVERY == 0 else RingWorld
        return kind(seed, tracing=tracing)
    return _CLUSTERS[level](seed, nodes=nodes, tracing=tracing)


@contextmanager
def _small_world() -> Iterator[None]:
    """A run lasts seconds: what production does once in a while must happen many times in it."""
    before = [(module, name, getattr(module, name)) for module, name, _ in SMALLER]
    for module, name, value in SMALLER:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _run(world: World, level: str, tracing: bool) -> Outcome:
    failure = None
    try:
        world.run()
    except Violation as broken:
        failure = Failure(promise=broken.promise, detail=broken.detail, last_events=world.scheduler.trace())
    except Exception as bug:  # noqa: BLE001 - whatever the code under test raises is what the seed has found
        failure = Failure(promise="a bug", detail=repr(bug), last_events=world.scheduler.trace())
    return Outcome(
        level=level,
        seed=world.seed,
        digest=world.scheduler.digest,
        virtual_s=world.scheduler.time,
        counts=world.tally.counts() | {"events": world.scheduler.events},
        failure=failure,
        trace=world.scheduler.trace() if tracing else [],
    )
