"""Consumer groups of KIP-848 under random changes of members, topics, disks and coordinators.

The central claim is that no partition is in two hands at any step: clients count a partition as theirs from the answer
that gives it to them until the request that says that they gave it up."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.config import GroupSettings
from penstock.errors import ErrorCode
from penstock.groups.consumer_values import MemberState
from tests.groups.consumer_group_harness import (
    SESSION_MS,
    ConsumerClient,
    ConsumerHarness,
)
from tests.groups.group_harness import GROUP

NAMES = ("ann", "bob", "joe")
TOPICS = ("orders", "refunds", "returns")
Steps = list[tuple[str, str, tuple[str, ...], int]]
USUAL = ("reports",) * 16 + ("loses",) * 3 + ("busy",) * 3
RARE = ("leaves", "dies", "pauses", "subscribes", "puts", "drops", "matches", "passes", "fails", "disk")
STEPS = st.lists(
    st.tuples(
        st.sampled_from((*USUAL, *RARE, "deletes", "computes")),
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3).map(tuple),
        st.integers(1, 5),
    ),
    min_size=20,
    max_size=80,
)


class Watched:
    """A harness whose invariants are checked after every step."""

    def __init__(self, interval_ms: int) -> None:
        settings = GroupSettings(consumer_assignment_interval_ms=interval_ms)
        self.harness = ConsumerHarness(settings)
        self.members = {
            name: self.harness.member(name, instance=name if name == "joe" else None) for name in NAMES
        }
        self.heard_ms = dict.fromkeys(NAMES, 0)
        self.epoch = 0
        self.lives = 0

    def step(self, what: str, name: str, topics: tuple[str, ...], number: int) -> None:
        member, harness = self.members[name], self.harness
        match what:
            case "reports" | "loses":
                self.reports(name, is_heard=what == "reports")
            case "leaves" if member.epoch:
                member.leaves()
            case "dies":
                member.dies()
                self.lives += 1
                member.member_id = f"{name}-{self.lives}"
            case "pauses" if member.epoch and member.instance:
                member.leaves(-2)
                member.member_id = f"{name}-{number}"
            case "busy":
                member.busy = not member.busy
            case "subscribes":
                member.topics = topics
            case "matches":
                member.pattern, member._told = f"{topics[0][:3]}.*", None
            case "puts":
                known = harness.cluster.topics.get(topics[0])
                harness.puts(topics[0], number + (known.partitions if known is not None else 0))
            case "drops" if topics[0] in harness.cluster.topics:
                harness.drops(topics[0])
            case "passes":
                self.passes(number * 10_000)
            case "fails":
                self.fails_over()
            case "disk":
                harness.disk = "full" if harness.disk == "prompt" else "prompt"
            case "deletes":
                harness.deletes_groups(GROUP)
            case "computes":
                harness.computes()

    def reports(self, name: str, *, is_heard: bool) -> None:
        member = self.members[name]
        if is_heard:
            if member.reports().error is ErrorCode.NONE:
                self.heard_ms[name] = self.harness.now_ms
        elif (lost := member.sends(member.epoch, **member.complete())) is not None:
            member._told = None
            if lost.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                member.hears(lost)

    def passes(self, duration_ms: int) -> None:
        """A client that cannot report for its session gives up its partitions, and so does one that does not confirm a
        revocation in time: it is removed. Others confirm at once, and do not wait for their next heartbeat."""
        for name, member in self.members.items():
            if member.epoch and member.has_to_confirm and not member.busy:
                self.reports(name, is_heard=True)
        self.harness.passes(duration_ms)
        for name, member in self.members.items():
            silent_ms = self.harness.now_ms - self.heard_ms[name]
            if member.epoch and (silent_ms >= SESSION_MS or member.busy):
                member.dies()

    def fails_over(self) -> None:
        self.harness = self.harness.restarted()
        for member in self.members.values():
            member.harness = self.harness

    def check(self) -> None:
        owners: dict[object, str] = {}
        for name, member in self.members.items():
            for partition in member.owned:
                assert partition not in owners, f"in the hands of {owners[partition]} and {name}"
                owners[partition] = name
        group = self.harness.inner()
        if group is None:
            self.epoch = 0
            return
        held = {part: member.member_id for member in group.members.values() for part in member.held}
        assert held == group.owners, "invariant 1 of consumer_group.py"
        assert sum(len(member.held) for member in group.members.values()) == len(held), "invariant 1"
        assert group.assignment_epoch <= group.epoch, "invariant 2"
        for each in group.members.values():
            assert each.epoch <= group.assignment_epoch, "invariant 2"
            assert bool(each.revoking) == (each.state is MemberState.UNREVOKED_PARTITIONS)
        named = {name for member in group.members.values() for name in group.subscribed(member)}
        assert set(group.names) == named, "invariant 3"
        known = self.harness.cluster.topics
        assert group.topics == {name: known[name] for name in named if name in known}, "invariant 3"

    def ends(self) -> None:
        """All clients are well again, and report until nothing changes: the sessions of those that died end, too."""
        self.harness.disk = "prompt"
        for member in self.members.values():
            member.busy = False
        for _ in range(SESSION_MS // 5_000 + 8):
            for name in NAMES:
                self.reports(name, is_heard=True)
                self.check()
            self.harness.computes()
            self.harness.passes(5_000)


def expected(watched: Watched) -> set[object]:
    group = watched.harness.inner()
    assert group is not None
    return {(topic.topic_id, index) for topic in group.topics.values() for index in range(topic.partitions)}


@given(STEPS, st.sampled_from((0, 1_000)))
def test_no_partition_is_in_two_hands_at_any_step_and_all_are_read_in_the_end(
    steps: Steps, interval_ms: int
) -> None:
    watched = Watched(interval_ms)
    for step in steps:
        watched.step(*step)
        watched.check()
    watched.ends()
    members = watched.members.values()
    assert {partition for member in members for partition in member.owned} == expected(watched)
    assert watched.harness.consumer_group().state.value == "Stable"
    assert not watched.harness.open_tokens


@given(STEPS)
def test_the_next_coordinator_knows_all_that_clients_were_told(steps: Steps) -> None:
    watched = Watched(0)
    for step in steps:
        watched.step(*step)
        told = {name: (member.epoch, member.target) for name, member in watched.members.items()}
        restarted = watched.harness.restarted().inner()
        current = watched.harness.inner()
        for name, (epoch, target) in told.items():
            member: ConsumerClient = watched.members[name]
            known = restarted.members.get(member.member_id) if restarted is not None else None
            now = current.members.get(member.member_id) if current is not None else None
            if epoch and now is not None and now.epoch >= epoch:
                assert known is not None, f"{name} is forgotten"
                assert known.epoch >= epoch
                assert target & now.held <= known.held | restarted.owners.keys()  # type: ignore[union-attr]
