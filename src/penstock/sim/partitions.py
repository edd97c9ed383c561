"""The partitions of a simulated cluster, each with its clients, and where the replicas of a group are."""

import posixpath
from random import Random
from typing import TYPE_CHECKING

from penstock.node.replication.partition_table import ORPHANS
from penstock.sim.checks import Watched, Witness
from penstock.sim.clients import KeyedReader, PlainProducer, Producer, Reader
from penstock.sim.disk import SimDisk
from penstock.sim.history import History
from penstock.sim.host import PartitionServer
from penstock.types import GroupId, Replica

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld

TOPIC = "orders"


class SimPartition:
    """One partition of the topic, with its clients."""

    def __init__(self, world: "ClusterWorld", index: int) -> None:
        self._world = world
        self.index = index
        self.scheduler = world.scheduler
        self.tally = world.tally
        self.history = History()
        self.keyed = world.policy.compact
        self.servers = [PartitionServer(host, TOPIC, index) for host in world.hosts]
        self.producers: list[Producer | PlainProducer] = [
            (Producer if number < 2 else PlainProducer)(
                self, 10 * (index + 1) + number, world.random_for(f"producer {index}.{number}")
            )
            for number in range(3)
        ]
        self.readers = [
            self._reader(10 * (index + 1) + n, world.random_for(f"reader {index}.{n}")) for n in range(2)
        ]

    def _reader(self, number: int, random: Random) -> Reader:
        if not self.keyed:
            return Reader(self, number, random)
        return KeyedReader(self, number, random, keeps_tombstones=self._world.policy.keeps_tombstones)

    @property
    def group(self) -> GroupId | None:
        for host in self._world.hosts:
            if host.ready:
                topic = host.node.metadata.state.topics.get(TOPIC)
                if topic is not None:
                    return GroupId(topic.topic_id, self.index)
        return None

    @property
    def witness(self) -> Witness:
        group = self.group
        assert group is not None
        return self._world.witnesses[group]


class ReplicaDisks:
    """Finds the disks of the replicas of one group."""

    def __init__(self, world: "ClusterWorld", group: GroupId) -> None:
        self._world = world
        self._group = group

    def disk_of(self, replica: Replica) -> SimDisk | None:
        return self._world.disk_of(replica)

    def folders_of(self, replica: Replica, folder: str) -> list[str]:
        """Entries that a replica acknowledged before it was rebuilt still count, like those of a lost node."""
        host = next((one for one in self._world.hosts if one.is_home_of(replica)), None)
        if host is None or (host.is_assembled and host.node.storage.raft.replica(self._group) == replica):
            return [folder]
        name = posixpath.basename(folder)
        aside = [one for one in host.disk.durable_names(ORPHANS) if one.startswith(f"{name}.")]
        earlier = [posixpath.join(ORPHANS, one) for one in aside]
        return earlier if host.is_assembled else [folder, *earlier]

    def running(self, replica: Replica) -> Watched | None:
        members = [
            one
            for host in self._world.hosts
            if host.is_home_of(replica) and host.is_assembled
            for one in host.members()
        ]
        return next(
            (one for one in members if one.consensus.group == self._group and one.me == replica), None
        )
