"""One producer at a time: which producer owns a partition, until when, and how ownership passes on."""

from collections.abc import Callable
from uuid import UUID

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.exclusive_producers import ExclusiveProducers, Writer
from penstock.types import GroupId, Term, TopicPartition

HERE, ELSEWHERE = GroupId(UUID(int=1), 0), GroupId(UUID(int=1), 1)
NAME = TopicPartition("payments", 0)
TERM = Term(3)
NOON_MS = 1_700_000_000_000


class Line:
    """A connection that can end."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.callbacks: list[Callable[[], None]] = []

    def when_closed(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        for callback in self.callbacks:
            callback()
        self.callbacks.clear()


def write(
    holders: ExclusiveProducers,
    writer: Writer,
    group: GroupId = HERE,
    term: Term = TERM,
    now_ms: int = NOON_MS,
) -> None:
    holders.check(NAME, group, term, writer)
    holders.take(group, term, writer, now_ms)


def refused(holders: ExclusiveProducers, writer: Writer) -> str:
    with pytest.raises(KafkaError) as caught:
        write(holders, writer)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    return caught.value.message


def test_the_second_producer_is_refused_with_the_name_of_the_owner_and_what_to_do() -> None:
    holders = ExclusiveProducers()
    write(holders, Writer(Line("10.0.0.1:5000"), "billing", -1))
    told = refused(holders, Writer(Line("10.0.0.2:6000"), "intruder", -1))
    assert "payments-0 takes records from one producer at a time (penstock.producer.exclusive)" in told
    assert "'billing' at 10.0.0.1:5000 has held it since 2023-11-14T22:13:20+00:00" in told
    assert "write again when that client has closed its connection" in told


def test_the_owner_continues_and_may_own_other_partitions_as_well() -> None:
    holders, first = ExclusiveProducers(), Writer(Line("a"), "first", -1)
    for group in (HERE, HERE, ELSEWHERE):
        write(holders, first, group)
    assert len(holders) == 2


def test_the_end_of_a_connection_frees_all_its_partitions() -> None:
    holders, line = ExclusiveProducers(), Line("a")
    write(holders, Writer(line, "first", -1))
    write(holders, Writer(line, "first", -1), ELSEWHERE)
    line.end()
    assert len(holders) == 0
    write(holders, Writer(Line("b"), "second", -1))


def test_an_idempotent_producer_that_reconnects_takes_over_from_its_lost_connection() -> None:
    holders, lost, new = ExclusiveProducers(), Line("a"), Line("b")
    write(holders, Writer(lost, "first", 17))
    write(holders, Writer(new, "first", 17), now_ms=NOON_MS + 60_000)
    lost.end()
    assert "has held it since 2023-11-14T22:13:20" in refused(holders, Writer(Line("c"), "second", 18))
    new.end()
    write(holders, Writer(Line("c"), "second", 18))


def test_producers_without_an_id_are_different_producers() -> None:
    holders = ExclusiveProducers()
    write(holders, Writer(Line("a"), "same name", -1))
    refused(holders, Writer(Line("b"), "same name", -1))


def test_in_a_new_term_the_first_writer_owns_the_partition() -> None:
    holders, old = ExclusiveProducers(), Line("a")
    write(holders, Writer(old, "first", -1))
    write(holders, Writer(Line("b"), "second", -1), term=Term(TERM + 1))
    old.end()
    with pytest.raises(KafkaError, match="'second' at b"):
        holders.check(NAME, HERE, Term(TERM + 1), Writer(Line("c"), "third", -1))


def test_switching_between_connections_leaves_nothing_behind() -> None:
    holders, lines = ExclusiveProducers(), [Line("a"), Line("b")]
    for number in range(100):
        write(holders, Writer(lines[number % 2], "first", 17))
    assert [len(line.callbacks) for line in lines] == [1, 1]
    for line in lines:
        line.end()
    assert len(holders) == 0
