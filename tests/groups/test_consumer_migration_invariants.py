"""Groups whose members come and go with both protocols, in any order: no partition is in two hands at any step, of
whichever type the group is."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ErrorCode
from penstock.groups import JoinResult, SyncResult
from penstock.groups.embedded_protocol import decode_assignment, encode_assignment
from penstock.types import TopicPartition
from tests.groups.consumer_group_harness import ConsumerHarness
from tests.groups.group_harness import SESSION_MS, Client

OLD, NEW = ("ann", "bob"), ("eve", "joe")
Steps = list[tuple[str, str]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("reports",) * 10 + ("leaves", "dies", "passes", "fails")), st.sampled_from(OLD + NEW)
    ),
    min_size=10,
    max_size=60,
)
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class EagerClient:
    """A consumer of the classic protocol: it reads what SyncGroup gave it, and gives it up before it joins again."""

    def __init__(self, harness: ConsumerHarness, name: str) -> None:
        self.client: Client = harness.client(name)
        self.owned: set[TopicPartition] = set()
        self.is_syncing = False

    def reports(self) -> None:
        client = self.client
        if client.token and not client.is_answered:
            return
        answer = client.harness.replies.get(client.token)
        if isinstance(answer, SyncResult) and self.is_syncing:
            self._synced(answer)
        elif isinstance(answer, JoinResult) and answer.error is ErrorCode.NONE and not self.is_syncing:
            self._syncs(answer)
        elif client.generation < 0:
            self._joins()
        else:
            code = client.heartbeats()
            if code in LOST:
                client.forgets()
            if code is not ErrorCode.NONE:
                self._joins()

    def _joins(self) -> None:
        self.owned, self.is_syncing = set(), False
        if self.client.token in self.client.harness.replies:
            answer = self.client.harness.replies[self.client.token]
            if isinstance(answer, JoinResult) and answer.error in LOST:
                self.client.forgets()
        self.client.joins()

    def _syncs(self, joined: JoinResult) -> None:
        shares = {
            member.member_id: encode_assignment(
                TopicPartition("orders", index) for index in range(at, 4, len(joined.members))
            )
            for at, member in enumerate(joined.members)
        }
        self.is_syncing = True
        self.client.syncs(shares)
        self.reports()

    def _synced(self, answer: SyncResult) -> None:
        self.is_syncing = False
        if answer.error is ErrorCode.NONE:
            self.owned = set(decode_assignment(answer.assignment) or ())
            self.client.token = 0
            return
        if answer.error in LOST:
            self.client.forgets()
        self._joins()

    def leaves(self) -> None:
        if self.client.generation >= 0:
            self.client.leaves()
        self.ends()

    def ends(self) -> None:
        self.owned, self.is_syncing, self.client.token = set(), False, 0
        self.client.forgets()


class Watched:
    """A harness whose clients are checked after every step."""

    def __init__(self) -> None:
        self.harness = ConsumerHarness()
        self.old = {name: EagerClient(self.harness, name) for name in OLD}
        self.new = {name: self.harness.member(name) for name in NEW}

    def step(self, what: str, name: str) -> None:
        old, new = self.old.get(name), self.new.get(name)
        match what:
            case "reports":
                self.reports(name)
            case "leaves" | "dies" if old is not None:
                old.leaves() if what == "leaves" else old.ends()
            case "leaves" if new is not None and new.epoch:
                new.leaves()
            case "dies" if new is not None:
                new.dies()
            case "passes":
                self.harness.passes(SESSION_MS // 4)
                for each in (*OLD, *NEW):
                    self.reports(each)
            case "fails":
                self.fails_over()

    def reports(self, name: str) -> None:
        if name in self.old:
            self.old[name].reports()
        else:
            self.new[name].reports()

    def fails_over(self) -> None:
        restarted = self.harness.restarted()
        restarted.clients, restarted._ids = self.harness.clients, self.harness._ids
        self.harness = restarted
        for old in self.old.values():
            if old.client.token and not old.client.is_answered:
                old.client.token, old.is_syncing = 0, False  # NOT_COORDINATOR
            else:
                restarted.replies |= old.client.harness.replies
            old.client.harness = restarted
        for new in self.new.values():
            new.harness = restarted

    def hands(self) -> list[tuple[str, TopicPartition]]:
        held = [(name, partition) for name, old in self.old.items() for partition in old.owned]
        for name, new in self.new.items():
            held += ((name, TopicPartition("orders", index)) for _, index in new.owned)
        return held

    def check(self) -> None:
        owners: dict[TopicPartition, str] = {}
        for name, partition in self.hands():
            assert partition not in owners, f"{partition} is in the hands of {owners[partition]} and {name}"
            owners[partition] = name


@given(STEPS)
def test_no_partition_is_in_two_hands_while_a_group_moves_between_the_protocols(steps: Steps) -> None:
    watched = Watched()
    for step in steps:
        watched.step(*step)
        watched.check()
    for _ in range(60):  # sessions of members that died end meanwhile
        watched.step("passes", "ann")
        watched.check()
    assert sorted(partition.partition for _, partition in watched.hands()) == [0, 1, 2, 3]
