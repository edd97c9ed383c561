"""The list of a queue's consumers: who is on it, for how long, and how it is bounded."""

from penstock.node.calls.messages.queues import QueueConsumer
from penstock.node.queues import consumers
from penstock.node.queues.consumers import (
    MAX_RECENT,
    MAX_TEXT,
    MAX_UNNAMED,
    RECENT_MS,
    ConsumerIdentity,
    Interface,
    MergedConsumer,
    QueueConsumers,
    RateWindow,
    Sighting,
    merged,
)
from penstock.queue.values import AckKind, Acknowledgement

START_MS = 1_700_000_000_000


def identity(
    name: str = "one", *, interface: Interface = Interface.KAFKA, shown: str = "", since_ms: int = START_MS
) -> ConsumerIdentity:
    return ConsumerIdentity.of(interface, name, name=shown, address="10.0.0.1:7", since_ms=since_ms)


def idle(member: str) -> int:
    return 0


def accepted(first: int, last: int) -> Acknowledgement:
    return Acknowledgement(first, last, bytes([AckKind.ACCEPT]))


def names(table: QueueConsumers, now_ms: int = START_MS) -> list[str]:
    return [row.name for row in table.listed(now_ms, idle, 10_000)]


def test_a_connected_consumer_is_listed_until_it_goes() -> None:
    table = QueueConsumers()
    table.attach(identity())
    table.attach(identity())
    assert names(table, START_MS + 10 * RECENT_MS) == ["one"]
    assert table.connected == ["one"]
    table.detach("one")
    assert names(table) == []
    table.detach("one")


def test_an_http_consumer_is_listed_while_it_is_recent_or_holds_leases() -> None:
    table = QueueConsumers()
    table.seen("curl", identity("curl", interface=Interface.HTTP), START_MS, idle)
    assert table.connected == []
    assert names(table, START_MS + RECENT_MS) == ["curl"]
    [row] = table.listed(START_MS + RECENT_MS + 1, {"curl": 2}.get, 10)  # type: ignore[arg-type]
    assert (row.leases, row.interface) == (2, "http")
    assert names(table, START_MS + RECENT_MS + 1) == []


def test_requests_without_a_name_are_one_consumer_with_all_their_leases() -> None:
    table = QueueConsumers()
    shared = identity("http 10.0.0.1 curl", interface=Interface.HTTP, shown="curl")
    for number in range(3):
        table.seen(f"http-{number}", shared, START_MS, idle)
    table.count_settled("http-0", [accepted(0, 9)], START_MS)
    [row] = table.listed(START_MS, lambda member: 1, 10)
    assert (row.name, row.leases, row.rate) == ("curl", 3, 10.0)


def test_a_consumer_that_uses_the_name_of_its_first_request_is_counted_once() -> None:
    table = QueueConsumers()
    table.seen("http-1", identity("http 10.0.0.1 curl", interface=Interface.HTTP), START_MS, idle)
    table.seen("http-1", identity("http-1", interface=Interface.HTTP), START_MS, idle)
    [row] = table.listed(START_MS, lambda member: 1, 10)
    assert (row.name, row.leases) == ("http-1", 1)


def test_http_consumers_and_their_unnamed_requests_are_bounded() -> None:
    table = QueueConsumers()
    for number in range(MAX_RECENT + 10):
        one = identity(f"c{number}", interface=Interface.HTTP, since_ms=START_MS + number)
        table.seen(f"c{number}", one, START_MS + number, idle)
    assert len(names(table)) == MAX_RECENT
    assert names(table)[0] == "c10", "the oldest are forgotten first"
    for number in range(5):
        table.attach(identity(f"member-{number}"))
    table.seen("c500", identity("c500", interface=Interface.HTTP), START_MS, idle)
    assert len(table.identities(START_MS, idle)) == MAX_RECENT + 5, (
        "connected consumers do not push others out"
    )
    shared = identity("http 10.0.0.1 curl", interface=Interface.HTTP)
    for number in range(3 * MAX_UNNAMED):
        table.seen(f"http-{number}", shared, START_MS, lambda member: 1)
    [row] = [row for row in table.listed(START_MS, lambda member: 1, 10_000) if row.name.startswith("http ")]
    assert row.leases <= MAX_UNNAMED


def test_names_that_clients_choose_are_cut_and_printable() -> None:
    one = identity("x" * 5_000, shown="\x1b[31mred" + "y" * 5_000)
    assert len(one.name) == MAX_TEXT
    assert one.name.isprintable()
    assert one.name.startswith("?[31mred")
    table = QueueConsumers()
    table.attach(one)
    table.attach(identity("x" * 5_000 + "y"))
    ids = [row.consumer_id for row in table.listed(START_MS, idle, 10)]
    assert len(set(ids)) == 2
    assert all(len(one) == MAX_TEXT for one in ids)


def test_a_description_lists_the_oldest_of_too_many() -> None:
    table = QueueConsumers()
    for number in range(5):
        table.attach(identity(f"c{number}", since_ms=START_MS - number))
    assert [row.name for row in table.listed(START_MS, idle, 2)] == ["c4", "c3"]


def test_a_rate_covers_the_last_minute_and_is_right_for_a_new_consumer() -> None:
    rate = RateWindow()
    rate.add(50, START_MS)
    assert rate.per_second(START_MS, START_MS + 100) == 50.0, "less than a second counts as one"
    assert rate.per_second(START_MS, START_MS + 10_000) == 5.0
    rate.add(70, START_MS + 30_000)
    assert rate.per_second(START_MS - 600_000, START_MS + 30_000) == 2.0
    assert rate.per_second(START_MS - 600_000, START_MS + 65_000) == round(70 / 60, 3)
    assert rate.per_second(START_MS, START_MS + 10 * consumers.WINDOW_MS) == 0.0


def test_a_rate_counts_settled_messages_and_no_renewals() -> None:
    table = QueueConsumers()
    table.attach(identity())
    table.count_settled("one", [accepted(0, 3)], START_MS)
    kinds = bytes([AckKind.RENEW, AckKind.REJECT, AckKind.GAP, AckKind.RELEASE])
    renewed = Acknowledgement(0, 9, bytes([AckKind.RENEW]))
    table.count_settled("one", [Acknowledgement(4, 7, kinds), renewed], START_MS)
    [row] = table.listed(START_MS, idle, 10)
    assert row.rate == 6.0
    table.detach("one")
    assert table.rate(START_MS) == 6.0, "the queue's rate includes consumers that have gone"


def sighting(node: int, partition: int, consumer_id: str, name: str, **more: object) -> Sighting:
    facts = {"interface": "websocket", "address": f"10.0.0.1:{node}", "since_ms": START_MS, **more}
    row = QueueConsumer(
        consumer_id,
        name,
        str(facts["address"]),
        str(facts["interface"]),
        START_MS,
        2,
        0.5,
    )
    return Sighting(node=node, topic="jobs", partition=partition, consumer=row)


def shape(rows: list[MergedConsumer]) -> list[tuple[str, int, float, list[int]]]:
    return [(one.name, one.leases, one.rate, one.nodes) for one in rows]


def test_one_consumer_on_many_partitions_and_nodes_is_one_row() -> None:
    kafka = [sighting(node, node, "member", "app", interface="kafka") for node in (1, 2, 3)]
    assert shape(merged(kafka)) == [("app", 6, 1.5, [1, 2, 3])]
    worker = [sighting(1, 0, "work-a", "host-7"), sighting(1, 1, "work-a", "host-7")]
    worker += [sighting(2, 2, "work-b", "host-7")]
    [row] = merged(worker)
    assert (row.leases, row.nodes) == (6, [1, 2])
    assert row.partitions == [("jobs", 0), ("jobs", 1), ("jobs", 2)]


def test_workers_of_one_name_are_told_apart() -> None:
    two = [sighting(node, node, f"work-{node}-{number}", "app") for node in (1, 2) for number in (1, 2)]
    assert shape(merged(two)) == [("app", 4, 1.0, [1, 2])] * 2
    elsewhere = [sighting(1, 0, "work-a", "app"), sighting(2, 1, "work-b", "app", address="10.0.0.2:1")]
    assert len(merged(elsewhere)) == 2
    unnamed = [sighting(1, 0, "work-a", "work-a"), sighting(2, 1, "work-b", "work-b")]
    assert len(merged(unnamed)) == 2
