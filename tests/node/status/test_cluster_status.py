"""The status report of a cluster, rendered from metadata, gossip, leaders and progress."""

import msgspec

from penstock.cluster import ClusterState, NodeDecommissioning, NodeFenced, NodeRemoved
from penstock.cluster.reassignment import reassign
from penstock.config import Address
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.replication.leaders import Leadership, LeaderTable
from penstock.node.status.cluster_status import (
    MAX_VOTER_LAG,
    NodeIdentity,
    NodeStatus,
    NodeView,
    PartitionStatus,
    QuorumStatus,
    ReplicaStatus,
    ReplicaTrouble,
    render_moves,
    render_nodes,
    render_partitions,
    render_troubles,
    voters_behind,
)
from penstock.types import GroupId, NodeId, Replica
from tests.cluster.clusters import apply, assign, cluster_of, group, registration, replica

ALL_ALIVE = {replica(node): "alive" for node in (1, 2, 3, 4)}
QUORUM = QuorumStatus(leader=2, term=5, voters=(1, 2, 3), learners=(4,), end_offset=9)


class StatusHarness:
    """Node 1's view of a cluster of four, of which `orders` has two partitions."""

    def __init__(self) -> None:
        self.state = cluster_of(1, 2, 3, 4)
        assign(self.state, "orders", (1, 2, 3), (2, 3, 4))
        self.leaders = LeaderTable()
        self.members: dict[Replica, str] = dict(ALL_ALIVE)
        self.connected = {2, 3, 4}
        self.progress: dict[GroupId, tuple[ReplicaStatus, ...]] = {}
        self.offline: tuple[ReplicaTrouble, ...] = ()
        self.damaged: tuple[ReplicaTrouble, ...] = ()

    def leads(self, partition: int, leader: int, *in_sync: int) -> None:
        self.leaders.learn(group("orders", partition), Leadership(leader, 7, in_sync))

    @property
    def seen(self) -> NodeView:
        return NodeView(self.members, frozenset(self.connected), self.progress, self.offline, self.damaged)

    def partitions(self, topic: str | None = None) -> list[PartitionStatus]:
        return list(render_partitions(self.state, self.view(), self.seen, topic))

    def view(self) -> ClusterView:
        return ClusterView(
            node_id=NodeId(1),
            listeners={"default": Address("host1", 9092)},
            rack=None,
            state=self.state,
            leaders=self.leaders,
        )

    def nodes(self) -> dict[int, NodeStatus]:
        rendered = render_nodes(self.state, identity(1), self.seen, QUORUM, self.partitions())
        return {node.node_id: node for node in rendered}

    def troubles(self, quorum: QuorumStatus = QUORUM) -> list[str]:
        return list(render_troubles(list(self.nodes().values()), self.partitions(), quorum, self.seen))


def identity(node: int) -> NodeIdentity:
    return NodeIdentity(
        replica=replica(node), kafka="host1:9092", http=None, cluster="host1:7000", rack=None, version="1"
    )


def behind(node: int, lag: int, *, learner: bool = False) -> ReplicaStatus:
    return ReplicaStatus(
        node_id=node, end_offset=100 - lag, lag=lag, bytes_behind=10 * lag, silent_ms=0, learner=learner
    )


def test_a_partition_shows_its_leader_and_the_lag_of_its_slowest_replica() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 2, 3)
    harness.progress[group("orders", 0)] = (behind(1, 0), behind(2, 3), behind(3, 1))
    first = harness.partitions()[0]
    assert (first.leader, first.term, first.replicas, first.in_sync) == (1, 7, (1, 2, 3), (1, 2, 3))
    assert (first.lag, first.under_replicated) == (3, False)


def test_an_unreported_lag_is_unknown_and_not_zero() -> None:
    harness = StatusHarness()
    harness.leads(1, 2, 2, 3, 4)
    assert harness.partitions()[1].lag is None


def test_a_replica_that_does_not_keep_up_makes_its_partition_under_replicated() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 3)
    assert harness.partitions()[0].under_replicated


def test_a_replica_that_is_still_being_copied_does_not_make_it_under_replicated() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 2, 3)
    _move(harness.state, 0, (1, 2, 4))
    first = harness.partitions()[0]
    assert (first.adding, first.removing, first.under_replicated) == ((4,), (3,), False)


def test_a_leader_on_a_node_that_gossip_declared_dead_is_not_shown() -> None:
    harness = StatusHarness()
    harness.leads(1, 2, 2, 3, 4)
    harness.members[replica(2)] = "dead"
    second = harness.partitions()[1]
    assert (second.leader, second.in_sync, second.under_replicated) == (None, (), True)


def test_a_wiped_node_that_returned_is_alive_although_its_old_incarnation_is_dead() -> None:
    harness = StatusHarness()
    harness.leads(1, 2, 2, 3, 4)
    harness.members[replica(2)] = "dead"
    harness.members[replica(2, incarnation=777)] = "alive"
    assert harness.partitions()[1].leader == 2


def test_an_offline_replica_is_named_with_its_partition() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 2)
    harness.leads(1, 2, 2, 3, 4)
    harness.offline = (ReplicaTrouble(topic="orders", partition=0, node_id=3, reason="the disk said no"),)
    assert [one.offline for one in harness.partitions()] == [(3,), ()]
    assert harness.troubles() == ["under-replicated partitions: 1", "offline replicas: 1"]


def test_a_damaged_replica_is_unhealthy_although_it_is_in_sync() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 2, 3)
    harness.leads(1, 2, 2, 3, 4)
    harness.damaged = (ReplicaTrouble(topic="orders", partition=1, node_id=4, reason="a wrong CRC"),)
    assert [(one.offline, one.damaged) for one in harness.partitions()] == [((), ()), ((), (4,))]
    assert harness.troubles() == ["damaged replicas: 1"]


def test_a_healthy_cluster_has_no_problems() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 2, 3)
    harness.leads(1, 2, 2, 3, 4)
    assert harness.troubles() == []


def test_a_dead_or_fenced_node_is_unhealthy_with_or_without_partitions() -> None:
    harness = StatusHarness()
    harness.state = cluster_of(1, 2, 3, 4)
    harness.members[replica(3)] = "dead"
    apply(harness.state, [NodeFenced(node_id=3), NodeFenced(node_id=4)])
    assert harness.troubles() == ["node 3 is dead and fenced", "node 4 is fenced"]


def test_a_suspect_and_a_connected_node_that_gossip_does_not_know_yet_are_no_problems() -> None:
    harness = StatusHarness()
    harness.state = cluster_of(1, 2, 3, 4)
    harness.members[replica(2)] = "suspect"
    del harness.members[replica(3)], harness.members[replica(4)]
    harness.connected = {2, 3}
    assert harness.troubles() == ["node 4 is unseen"]


def test_voters_that_are_silent_or_far_behind_are_counted_and_the_leader_is_not() -> None:
    late = msgspec.structs.replace(behind(2, 0), silent_ms=1501)
    slow = behind(3, MAX_VOTER_LAG + 1)
    assert voters_behind((1, 2, 3, 4), 1, [behind(1, 0), late, slow, behind(4, MAX_VOTER_LAG)], 1500) == (
        2,
        3,
    )


def test_voters_that_the_controller_does_not_report_count_as_behind() -> None:
    assert voters_behind((1, 2, 3), 1, [], 1500) == (2, 3)
    assert voters_behind((1,), 1, [], 1500) == ()


def test_voters_that_are_behind_are_a_problem_and_so_is_a_missing_controller() -> None:
    harness = StatusHarness()
    harness.state = cluster_of(1, 2, 3)
    weak = msgspec.structs.replace(QUORUM, behind=(3,))
    assert harness.troubles(weak) == ["1 of 3 metadata voters does not keep up: node 3"]
    headless = msgspec.structs.replace(QUORUM, leader=None)
    assert [said.split(":")[0] for said in harness.troubles(headless)] == ["there is no controller"]


def test_the_report_can_be_limited_to_one_topic() -> None:
    harness = StatusHarness()
    assign(harness.state, "users", (4,))
    assert [(one.topic, one.partition) for one in harness.partitions("users")] == [("users", 0)]
    assert len(harness.partitions()) == 3


def test_nodes_show_their_replicas_and_leaderships() -> None:
    harness = StatusHarness()
    harness.leads(0, 1, 1, 2, 3)
    harness.leads(1, 2, 2, 3, 4)
    nodes = harness.nodes()
    assert nodes[2].hosts == {"orders": [0, 1]}
    assert nodes[2].leads == {"orders": [1]}
    assert (nodes[4].hosts, nodes[4].leads) == ({"orders": [1]}, {})


def test_nodes_show_the_states_of_gossip_and_of_the_metadata() -> None:
    harness = StatusHarness()
    apply(harness.state, [NodeFenced(node_id=3), NodeDecommissioning(node_id=4, on=True)])
    harness.members[replica(3)] = "suspect"
    harness.connected = {2}
    nodes = harness.nodes()
    assert (nodes[3].state, nodes[3].fenced, nodes[3].connected) == ("suspect", True, False)
    assert (nodes[4].decommissioning, nodes[4].metadata_role) == (True, "learner")
    assert (nodes[2].controller, nodes[2].metadata_role, nodes[2].connected) == (True, "voter", True)


def test_a_node_reports_itself_as_alive_and_nodes_that_gossip_never_met_as_unseen() -> None:
    harness = StatusHarness()
    harness.members.clear()
    nodes = harness.nodes()
    assert (nodes[1].state, nodes[1].connected) == ("alive", True)
    assert nodes[2].state == "unseen"


def test_a_lone_node_is_a_cluster_of_one() -> None:
    seen = NodeView({}, frozenset(), {})
    quorum = QuorumStatus(leader=1, term=0, voters=(1,), learners=(), end_offset=0)
    alone = identity(1)._replace(cluster=None)
    [only] = render_nodes(ClusterState(node_id=1), alone, seen, quorum, [])
    assert (only.node_id, only.state, only.controller, only.metadata_role) == (1, "alive", True, "voter")
    assert only.registered


def test_a_removed_node_reports_itself_as_removed() -> None:
    harness = StatusHarness()
    apply(harness.state, [NodeRemoved(node_id=1)])
    nodes = harness.nodes()
    assert not nodes[1].registered
    assert nodes[2].registered


def test_a_move_shows_how_much_is_left_to_copy_to_new_replicas() -> None:
    harness = StatusHarness()
    _move(harness.state, 0, (1, 2, 4))
    assert [move.bytes_behind for move in render_moves(harness.state, harness.seen)] == [None]
    harness.progress[group("orders", 0)] = (behind(1, 0), behind(2, 1), behind(4, 50, learner=True))
    [move] = render_moves(harness.state, harness.seen)
    assert (move.replicas, move.target, move.adding, move.removing) == ((1, 2, 3), (1, 2, 4), (4,), (3,))
    assert move.bytes_behind == 500


def test_an_incarnation_is_text_because_json_numbers_are_too_short_for_it() -> None:
    state = cluster_of(1)
    apply(state, [registration(2, incarnation=2**62 + 1)])
    rendered = render_nodes(state, identity(1), NodeView({}, frozenset(), {}), QUORUM, [])
    assert rendered[1].incarnation == "4000000000000001"


def _move(state: ClusterState, partition: int, target: tuple[int, ...]) -> None:
    apply(state, reassign(state, "orders", partition, target))
