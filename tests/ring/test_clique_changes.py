"""What the coordinator of a clique tells people of its members."""

from penstock.ring import SLOTS
from penstock.ring.clique_changes import CliqueCounters
from penstock.ring.coordinator import CliqueCoordinator
from tests.ring.clique_harness import CLIQUE, LEASE_MS, TestHost, Worker, settle


class Told:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object, object]] = []

    def tell(self, kind: str, /, **facts: object) -> None:
        assert facts["clique"] == CLIQUE
        self.events.append((kind.removeprefix("clique.worker_"), facts["worker"], facts["member"]))


def watched() -> tuple[TestHost, Told]:
    host, told = TestHost(), Told()
    host.core = CliqueCoordinator(host.limits, told)
    host.carry_out(host.core.loaded(host.now_ms))
    return host, told


def test_members_that_join_leave_and_expire_are_told_and_counted() -> None:
    host, told = watched()
    one, two, three = (Worker(host, name) for name in ("one", "two", "three"))
    for worker in (one, two, three):
        worker.join()
    settle(one, two, three)
    assert host.core.counters == CliqueCounters(joined=3, handovers=host.core.counters.handovers)
    two.core.leave(host.now_ms)
    gone = two.core.member_id
    while not two.core.has_left:
        two.heartbeat()
    settle(one, three)
    for _ in range(5):
        host.pass_time(LEASE_MS // 4)
        one.heartbeat()
    assert told.events == [
        *(("joined", worker.core.worker, id_) for worker, id_ in _ids(told, one, two, three)),
        ("left", "two", gone),
        ("expired", "three", three.core.member_id),
    ]
    assert (host.core.counters.left, host.core.counters.expired) == (1, 1)


def _ids(told: Told, *workers: Worker) -> list[tuple[Worker, object]]:
    joined = {worker: member for kind, worker, member in told.events if kind == "joined"}
    return [(worker, joined[worker.core.worker]) for worker in workers]


def test_nothing_is_told_before_it_is_committed() -> None:
    host, told = watched()
    one = Worker(host, "one")
    one.heartbeat()
    host.commits = False
    host.heartbeat(one.core.heartbeat(host.now_ms))
    assert told.events == []
    host.commit(ok=False)
    assert told.events == []
    assert host.core.counters == CliqueCounters()


def test_slots_that_go_from_one_member_to_another_are_counted() -> None:
    host, _ = watched()
    one, two = Worker(host, "one"), Worker(host, "two")
    one.join()
    assert host.core.counters.handovers == 0, "nobody had them before"
    two.join()
    assert host.core.counters.handovers == 0, "they are not handed over yet"
    settle(one, two)
    assert host.core.counters.handovers == SLOTS // 2


def test_a_new_incarnation_takes_over_slots_under_the_same_name() -> None:
    host, told = watched()
    one = Worker(host, "one")
    one.join()
    again = Worker(host, "one")
    for _ in range(5):
        host.pass_time(LEASE_MS // 4)
        again.heartbeat()
    again.join()
    assert [kind for kind, _, _ in told.events] == ["joined", "expired", "joined"]
    assert host.core.counters.handovers == SLOTS
