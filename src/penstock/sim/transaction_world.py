"""The level of transactions: whole nodes as at the node level, with transactional programs and readers of committed
records for clients. The topic is kept, compacted or deleted by the seed's policy, under open transactions too."""

import msgspec

from penstock.config import TransactionSettings
from penstock.sim.clients import PlainProducer, Reader
from penstock.sim.cluster import ClusterWorld
from penstock.sim.fault_mix import FaultMix
from penstock.sim.outcome import Violation
from penstock.sim.partitions import TOPIC
from penstock.sim.policies import DAY_MS, Policy
from penstock.sim.transaction_history import TransactionHistory
from penstock.sim.transactional_programs import CommittedReader, TransactionalProgram
from penstock.types import Isolation, TopicPartition

BEGINNING_S = 60.0
"""How long the first commits may take. Where connections refuse frames, each answer that is lost in this way costs its
caller the 5 s of a call; and two programs with one transactional id fence each other."""
GENTLER = 0.15
GENTLER_FAULTS = (
    "crash_at_flush",
    "crash_after_vote",
    "crash_after_ack",
    "crash_new_leader",
    "isolate_writer",
    "crash",
    "power_cut",
    "blackout",
    "pause",
    "isolate",
    "cut",
)


class TransactionWorld(ClusterWorld):
    """Everything that one seed consists of."""

    def __init__(self, seed: int, *, nodes: int | None = None, tracing: bool = False) -> None:
        super().__init__(seed, nodes=nodes or 3, tracing=tracing)
        random = self.random_for("transactions")
        self.consumer_group = None
        self.transaction_settings = TransactionSettings(topic_partitions=random.choice((1, 2)))
        self.history = TransactionHistory()
        ids = [f"t{number}" for number in range(random.choice((2, 3, 4)))]
        twins = random.choice(([], ids[:1]))
        self.programs = [
            TransactionalProgram(self, f"program {number}", self.history, transactional_id)
            for number, transactional_id in enumerate((*ids, *twins))
        ]
        self._readers = [CommittedReader(self, f"committed reader {n}", self.history) for n in range(2)]
        for partition in self.partitions:
            # Producers of sequences choose their own ids, which coordinators may give to others.
            partition.producers = [one for one in partition.producers if isinstance(one, PlainProducer)]
            partition.readers = [
                Reader(partition, 10 * (partition.index + 1), self.random_for(f"reader {partition.index}"))
            ]

    def _draw_policy(self) -> Policy:
        """Markers outlive the run. A replica that is away for longer than `delete.retention.ms` may never get the
        marker of a transaction whose batches it has: see docs/transactions.md."""
        return msgspec.structs.replace(super()._draw_policy(), tombstones_ms=DAY_MS)

    def _draw_mix(self) -> FaultMix:
        """Fewer faults than at the node level: a transaction takes a dozen requests, and each fault should meet another
        one of its steps. No damaged disks, because readers here take what they get. Markers have the time of their
        leader, so that retention by time needs clocks that agree."""
        mix = super()._draw_mix()
        fewer = {name: getattr(mix, name) * GENTLER for name in GENTLER_FAULTS}
        drift = 0.0 if self.policy.expires else mix.clock_drift
        return msgspec.structs.replace(mix, rot=0.0, clock_drift=drift, **fewer)

    def _draw_partition_count(self) -> int:
        return self._random.choice((2, 3))

    # --- running

    def _gather_clients(self) -> None:
        """Every program has committed something before the faults begin."""
        for program in self.programs:
            program.start(program.run)
        for reader in self._readers:
            reader.start(reader.run)
        while not all(program.steps for program in self.programs):
            if self.scheduler.time > BEGINNING_S:
                raise Violation("programs begin", self.client_obstacles())
            self._until(self.scheduler.time + 0.25)

    def _stop_writing(self) -> None:
        super()._stop_writing()
        for program in self.programs:
            program.resting = True

    @property
    def clients_are_settled(self) -> bool:
        is_at_rest = all(one.is_gone or (one.is_idle and one.resting) for one in self.programs)
        return is_at_rest and self._is_stable()

    def _is_stable(self) -> bool:
        """Whether every leader knows of no open transaction, and no coordinator does."""
        for host in self.hosts:
            if not host.ready:
                continue
            for partition in host.node.partitions.online():
                is_behind = partition.end_for(Isolation.READ_COMMITTED) < partition.high_watermark
                if partition.serves and (partition.log.transactions.open or is_behind):
                    return False
            for core_host in host.node.transactions.cores.loaded().values():
                if any(True for _ in core_host.core.open_transactions()):
                    return False
        return True

    def client_obstacles(self) -> str:
        waiting = [program.name for program in self.programs if not (program.is_idle or program.is_gone)]
        held = [
            f"{host.name} has {dict(partition.log.transactions.open)} open on {partition.name}"
            for host in self.hosts
            if host.ready
            for partition in host.node.partitions.online()
            if partition.serves and partition.log.transactions.open
        ]
        undone = [
            f"{host.name} coordinates {one.transactional_id} in {one.state.title} on {sorted(one.partitions)}"
            for host in self.hosts
            if host.ready
            for core_host in host.node.transactions.cores.loaded().values()
            for one in core_host.core.open_transactions()
        ]
        return "; ".join([f"{waiting} are not idle", *held, *undone])

    def _check_clients(self) -> None:
        offsets = {
            one.transactional_id: self._committed_offset(one.transactional_id) for one in self.programs
        }
        truths = {partition.index: partition.witness.truth for partition in self.partitions}
        self.history.check(truths, offsets, compacted=self.policy.compact)

    def _committed_offset(self, transactional_id: str) -> int:
        name = TopicPartition(TOPIC, 0)
        for host in self.hosts:
            if host.ready:
                for one in host.node.groups.summaries():
                    if one.group_id == transactional_id:
                        return one.offsets.get(name, 0)
        return 0

    def _count(self) -> None:
        super()._count()
        self.tally.add("transactions", len(self.history.transactions))
        self.tally.add("transactions committed", sum(one.committed for one in self.history.transactions))
        self.tally.add("polls of committed records", len(self.history.polls))

    def _dispose(self) -> None:
        for client in (*self.programs, *self._readers):
            client.end()
        super()._dispose()
