"""The promises of `group.py` hold for any order of client calls, time and disk faults; every request is answered."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.config import GroupSettings, Limits
from penstock.groups import GroupState, Protocol
from penstock.groups.group import Group, metadata_size
from penstock.groups.shared_state import pending_timer, session_timer
from penstock.types import TopicPartition
from tests.groups.group_harness import Client, GroupHarness, subscription

GROUP_IDS = ("one", "two")
CLIENTS = st.integers(0, 5)
SUBSCRIPTIONS = (subscription("orders"), subscription("orders", "invoices"), b"no subscription")
PROTOCOL_SETS = (("range",), ("range", "sticky"), ("sticky", "range"), ("roundrobin", "range"))


class RandomGroups(RuleBasedStateMachine):
    """Six clients of two groups, two of them with one instance id, do anything in any order."""

    @initialize(delay_ms=st.sampled_from([0, 3000]), seats=st.sampled_from([2, 100]))
    def start(self, delay_ms: int, seats: int) -> None:
        group_settings = GroupSettings(
            initial_rebalance_delay_ms=delay_ms,
            offsets_retention_minutes=5,
            offsets_retention_check_interval_ms=60_000,
        )
        self.harness = GroupHarness(group_settings, Limits(max_group_members=seats))
        self.clients = [
            self.harness.client("ann", group_id="one", session_ms=6000),
            self.harness.client("ben", group_id="one", session_ms=9000, rebalance_ms=0),
            self.harness.client("cat", group_id="one", version=3),
            self.harness.client("dan", group_id="one", instance_id="pod-0", rebalance_ms=20_000),
            self.harness.client("eve", group_id="one", instance_id="pod-0", version=8),
            self.harness.client("fay", group_id="two"),
        ]
        self.generations: dict[int, tuple[Group, int]] = {}
        self.some_write_failed = False

    def client(self, index: int) -> Client:
        return self.clients[index]

    @rule(index=CLIENTS, names=st.sampled_from(PROTOCOL_SETS), metadata=st.sampled_from(SUBSCRIPTIONS))
    def join(self, index: int, names: tuple[str, ...], metadata: bytes) -> None:
        self.client(index).joins(protocols=tuple(Protocol(name, metadata) for name in names))

    @rule(index=CLIENTS)
    def join_again_with_nothing_new(self, index: int) -> None:
        self.client(index).asks_to_join()

    @rule(index=CLIENTS)
    def sync(self, index: int) -> None:
        client = self.client(index)
        group = self.harness.coordinator.describe(client.group_id)
        members = group.members if group else ()
        client.syncs({member.member_id: member.member_id.encode() for member in members})

    @rule(first=CLIENTS, last=CLIENTS)
    def some_get_together(self, first: int, last: int) -> None:
        """Random steps alone hardly ever produce a stable group."""
        some = self.clients[first : last + 1]
        for _ in range(2):
            for client in some:
                client.joins()
        self.harness.passes(6000)
        for client in some:
            self.sync(self.clients.index(client))

    @rule(index=CLIENTS)
    def heartbeat(self, index: int) -> None:
        self.client(index).heartbeats()

    @rule(index=CLIENTS)
    def leave(self, index: int) -> None:
        self.client(index).leaves()

    @rule(index=CLIENTS)
    def restart_client(self, index: int) -> None:
        self.client(index).forgets()

    @rule(
        index=CLIENTS,
        topic=st.sampled_from(["orders", "invoices"]),
        offset=st.integers(0, 9),
        as_member=st.booleans(),
    )
    def commit(self, index: int, topic: str, offset: int, as_member: bool) -> None:
        stranger = {} if as_member else {"member_id": "", "generation": -1, "instance_id": None}
        self.client(index).commits(topic, offset=offset, **stranger)

    @rule(group_id=st.sampled_from(GROUP_IDS))
    def delete_group(self, group_id: str) -> None:
        self.harness.deletes_groups(group_id)

    @rule(group_id=st.sampled_from(GROUP_IDS), topic=st.sampled_from(["orders", "invoices"]))
    def delete_offset(self, group_id: str, topic: str) -> None:
        self.harness.deletes_offsets(TopicPartition(topic, 0), group_id=group_id)

    @rule()
    def delete_topic(self) -> None:
        self.harness.deletes_topics("invoices")

    @rule(duration_ms=st.sampled_from([1, 3000, 7000, 30_000, 400_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.harness.passes(duration_ms)

    @rule(disk=st.sampled_from(["prompt", "slow", "slow", "full"]))
    def change_disk(self, disk: str) -> None:
        self.harness.disk = disk
        self.some_write_failed |= disk == "full"

    @rule(writes=st.integers(1, 3))
    def disk_gets_on(self, writes: int) -> None:
        self.harness.flush(writes)

    @invariant()
    def promises_hold(self) -> None:
        if not hasattr(self, "harness"):
            return
        for group in self.harness.coordinator._shared.groups.values():
            self.check_members(group)
            self.check_waiting(group)
            self.check_counts(group)
            self.check_timers(group)
            before = self.generations.get(id(group), (group, 0))[1]
            assert group.generation >= before
            self.generations[id(group)] = (group, group.generation)

    def check_members(self, group: Group) -> None:
        assert (group.leader in group.members) == bool(group.members)
        assert bool(group.members) or group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
        assert not group.members or group.state is not GroupState.EMPTY
        for instance_id, member_id in group.static.items():
            assert group.members[member_id].instance_id == instance_id
        assert sum(member.is_static for member in group.members.values()) == len(group.static)
        assert not group.pending & group.members.keys()

    def check_waiting(self, group: Group) -> None:
        for member in group.members.values():
            assert member.join_token is None or group.state is GroupState.PREPARING_REBALANCE
            assert member.sync_token is None or group.state is GroupState.COMPLETING_REBALANCE
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert (member.sync_token is None) or member.member_id not in group.pending_sync

    def check_counts(self, group: Group) -> None:
        members = group.members.values()
        assert group.waiting_to_join == sum(member.join_token is not None for member in members)
        assert group.metadata_bytes == sum(metadata_size(member.protocols) for member in members)
        assert group.pending_sync <= group.members.keys()
        assert not members or group._common_protocols()

    def check_timers(self, group: Group) -> None:
        timers = self.harness.coordinator._shared.timers
        assert all(session_timer(group, member_id) in timers for member_id in group.members)
        assert all(pending_timer(group, member_id) in timers for member_id in group.pending)
        next_ms = self.harness.coordinator.next_deadline_ms
        assert next_ms is None or next_ms >= self.harness.now_ms

    def teardown(self) -> None:
        """In the end the disk works, and time passes: every request was answered, and the log has all state."""
        if not hasattr(self, "harness"):
            return
        self.harness.disk = "prompt"
        self.harness.flush()
        self.harness.passes(3_000_000)
        assert self.harness.open_tokens == set()
        assert all(listing.state is GroupState.EMPTY for listing in self.harness.coordinator.list_groups())
        assert self.harness.in_flight == []
        assert self.harness.coordinator._shared.outbox._in_flight == {}
        if not self.some_write_failed:
            assert self.harness.restarted().state() == self.harness.state()


TestGroupsUnderFire = RandomGroups.TestCase
TestGroupsUnderFire.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
