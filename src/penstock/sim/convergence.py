"""Whether a simulated cluster has converged, and what prevents it."""

from typing import TYPE_CHECKING

from penstock.batch import iter_headers
from penstock.node.metadata.cluster_view import METADATA_GROUP
from penstock.raft import Role
from penstock.sim.host import READ_BYTES, Host, WatchedReplica
from penstock.sim.outcome import Violation
from penstock.types import GroupId, Offset

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld


class Convergence:
    """All nodes are there, every group has a leader whose log all members have, and no client waits."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world

    def expected(self) -> list[Host]:
        """The hosts that must be up in the end."""
        world = self._world
        return [
            host
            for host in world.hosts
            if host not in world.retired and (host.running or host.me is not None)
        ]

    def is_available(self) -> bool:
        world = self._world
        if not all(host.ready for host in self.expected()):
            return False
        idle = all(p.stopped and not p.busy for partition in world.partitions for p in partition.producers)
        return (
            idle
            and world.clients_are_settled
            and all(self._is_group_settled(group) for group in self.groups())
        )

    def groups(self) -> list[GroupId]:
        """The metadata group, and those of all partitions that any node knows."""
        ready = next((host for host in self._world.hosts if host.ready), None)
        topics = ready.node.metadata.state.topics.values() if ready is not None else ()
        return [
            METADATA_GROUP,
            *[GroupId(topic.topic_id, index) for topic in topics for index in range(topic.partitions)],
        ]

    def _is_group_settled(self, group: GroupId) -> bool:
        members = self._world.running_members(group)
        leaders = [one for one in members if one.core.role is Role.LEADER]
        if len(leaders) != 1 or self._is_moving(group):
            return False
        core = leaders[0].core
        config, end, start = core.config, leaders[0].log.entries.end_index, leaders[0].log.start_offset
        if config is None or config.joint or core.changing:
            return False
        part = [one for one in members if one.me in config.members]
        return len(part) == len(config.members) and all(
            (one.core.commit_index, one.log.entries.end_index, one.log.entries.flushed_index)
            == (end, end, end)
            # A leader may have died before it told all where its log starts: who knows is ahead of the next one.
            and one.log.start_offset >= start
            for one in part
        )

    def _is_moving(self, group: GroupId) -> bool:
        states = [host.node.metadata.state for host in self.expected()]
        found = [state.assignment(group) for state in states]
        return any(assignment is not None and assignment.target is not None for assignment in found)

    def _restless(self, group: GroupId) -> str:
        """The target of its leader and of the metadata."""
        leaders = [one for one in self._world.running_members(group) if one.core.role is Role.LEADER]
        if self._is_group_settled(group):
            return ""
        said = [f"led by {one.name} with {one.core.config}, changing={one.core.changing}" for one in leaders]
        ready = [host for host in self._world.hosts if host.ready]
        said += [
            f"known to {host.name} as {host.node.metadata.state.assignment(group)}" for host in ready[:1]
        ]
        return ", ".join(said)

    def obstacles(self) -> str:
        lines = []
        for host in self._world.hosts:
            state = "ready" if host.ready else "running" if host.running else "down"
            groups = (
                [
                    f"{str(one.consensus.group)[-4:]} {one.core.role.value} in {one.core.term}: "
                    f"{one.core.commit_index} of {one.log.entries.end_index} from {one.log.start_offset}"
                    for one in host.members()
                ]
                if host.is_assembled
                else []
            )
            lines.append(f"{host.name} {state} ({', '.join(groups)})")
        busy = sum(producer.busy for partition in self._world.partitions for producer in partition.producers)
        lines.extend(
            f"partition {group.partition} is {why}"
            for group in self.groups()
            if (why := self._restless(group))
        )
        if obstacles := self._world.client_obstacles():
            lines.append(obstacles)
        return "; ".join([*lines, f"{busy} writes unanswered at {self._world.scheduler.time:.0f} s"])


def check_producers(members: list[WatchedReplica]) -> None:
    """The state of producers and transactions decides on duplicates and on the last stable offset after the next
    election: it must be the same on all replicas."""
    told = [
        (
            sorted((row[0], row[1], tuple(row[3][-1])[:4]) for row in one.log.producers.rows() if row[3]),
            sorted(one.log.transactions.open.items()),
        )
        for one in members
    ]
    for one, rows in zip(members, told, strict=True):
        if rows != told[0]:
            raise Violation(
                "replicas remember the same of producers",
                f"{one.name} has {rows}, {members[0].name} {told[0]}",
            )


def check_readable(members: list[WatchedReplica]) -> None:
    """Whichever replica leads next, readers get from its start to its end. Compaction may have removed the last
    records."""
    for one in members:
        offset, end = one.log.start_offset, one.log.end_offset
        while offset < end and (data := one.log.read(offset, READ_BYTES, limit=end)):
            *_, (_, last) = iter_headers(data)
            if last.next_offset <= offset:
                raise Violation("readers get on", f"{one.name} has {last} for who wants {offset}")
            offset = Offset(last.next_offset)
        if offset < end and offset > one.log.cleaned_offset:
            raise Violation("readers get to the end", f"{one.name}: they stop at {offset} of {end}")
