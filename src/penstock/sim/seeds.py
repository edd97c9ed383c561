"""Running seeds: one, or many."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

from penstock.config.node import MAX_NODES
from penstock.log import checkpoint, entries, reset, votes, writer
from penstock.node import housekeeping
from penstock.node.metadata import controller
from penstock.raft import config as raft_config
from penstock.sim import disk as sim_disk
from penstock.sim.cluster import ClusterWorld
from penstock.sim.consumer_world import ConsumerWorld
from penstock.sim.group import GroupWorld
from penstock.sim.machine_world import MachineWorld
from penstock.sim.outcome import Failure, Outcome, Violation
from penstock.sim.ring_gossip import GossipWorld
from penstock.sim.ring_world import RingWorld
from penstock.sim.transaction_world import TransactionWorld

CORE = "core"
NODE = "node"
RING = "ring"
TRANSACTIONS = "transactions"
GROUPS = "groups"
MACHINES = "machines"
LEVELS = (CORE, NODE, RING, TRANSACTIONS, GROUPS, MACHINES)

World = GroupWorld | ClusterWorld | RingWorld | GossipWorld

_CLUSTERS: dict[str, type[GroupWorld | ClusterWorld]] = {
    CORE: GroupWorld,
    NODE: ClusterWorld,
    TRANSACTIONS: TransactionWorld,
    GROUPS: ConsumerWorld,
    MACHINES: MachineWorld,
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


LARGE_SECTOR = 4096
LARGE_CONFIG = LARGE_SECTOR - 512 + checkpoint.MAX_CONFIG_BYTES
LARGER = (
    # All nodes are members of the metadata group, and its configuration must fit into a sector of the checkpoint: 20
    # nodes into one of 512 bytes. Clusters beyond that run on disks with sectors of 4 KB here.
    (controller, "MAX_NODES", 200),
    (raft_config, "MAX_REPLICAS", 200),
    (checkpoint, "SECTOR_SIZE", LARGE_SECTOR),
    (sim_disk, "SECTOR_SIZE", LARGE_SECTOR),
    (entries, "MAX_CONFIG_BYTES", LARGE_CONFIG),
    (reset, "MAX_CONFIG_BYTES", LARGE_CONFIG),
    (writer, "MAX_CONFIG_BYTES", LARGE_CONFIG),
)


def run_seed(seed: int, *, level: str = CORE, nodes: int | None = None, tracing: bool = False) -> Outcome:
    """One seed, from its beginning to its end or to the first promise that is broken."""
    with _small_world(), _large_world(nodes or 0):
        return _run(_make_world(seed, level, nodes, tracing), level, tracing)


def _make_world(seed: int, level: str, nodes: int | None, tracing: bool) -> World:
    if level == RING:
        kind = GossipWorld if seed % GOSSIP_EVERY == 0 else RingWorld
        return kind(seed, tracing=tracing)
    return _CLUSTERS[level](seed, nodes=nodes, tracing=tracing)


def _small_world() -> AbstractContextManager[None]:
    """A run lasts seconds: what production does once in a while must happen many times in it."""
    return _changed(SMALLER)


def _large_world(nodes: int) -> AbstractContextManager[None]:
    """More nodes than production allows."""
    return _changed(LARGER if nodes > MAX_NODES else ())


@contextmanager
def _changed(constants: Sequence[tuple[ModuleType, str, object]]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in constants]
    for module, name, value in constants:
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
