"""Push with `isolation`: committed, aborted and open transactions."""

from collections.abc import Callable

import pytest

from penstock import Broker
from tests.transactional import ALL, COMMITTED, END, TransactionalTopic
from tests.web.pushing import Json, subscriber

Unique = Callable[[str], str]
COMMITTED_ONLY = {"isolation": "read_committed", "encoding": "text"}


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> TransactionalTopic:
    """`fill`, and an open transaction of producer 1 at the end."""
    made = TransactionalTopic(broker, unique("isolated"))
    made.fill()
    made.send(1, "open")
    return made


def by_offset(messages: list[Json]) -> dict[int, str]:
    return {message["offset"]: message["value"] for message in messages}


def test_aborted_messages_are_not_pushed_and_open_ones_when_they_are_committed(
    broker: Broker, topic: TransactionalTopic, unique: Unique
) -> None:
    name = unique("billing")
    with subscriber(broker.http_url) as one:
        one.subscribe(name, topic.name, read_old=True, **COMMITTED_ONLY)
        taken = one.take(len(COMMITTED))
        assert by_offset(taken) == COMMITTED
        one.ack(taken[-1])
        while (
            one.hear_of("acked")["positions"][0]["offset"] != END
        ):  # an ack passes aborted records and markers
            pass
        topic.plain("behind")
        assert one.nothing_more(), "the transaction before it is open"
        topic.end(1, commit=True)
        assert by_offset(one.take(2)) == {END: "open", END + 1: "behind"}


def test_an_aborted_transaction_at_the_end_does_not_keep_it_from_going_on(
    broker: Broker, topic: TransactionalTopic, unique: Unique
) -> None:
    with subscriber(broker.http_url) as one:
        one.subscribe(unique("billing"), topic.name, read_old=True, **COMMITTED_ONLY)
        one.take(len(COMMITTED))
        topic.end(1, commit=False)
        topic.plain("behind")
        assert by_offset(one.take(1)) == {END + 2: "behind"}


def test_a_new_subscription_begins_with_the_first_open_transaction(
    broker: Broker, topic: TransactionalTopic, unique: Unique
) -> None:
    with subscriber(broker.http_url) as one:
        told = one.subscribe(unique("billing"), topic.name, **COMMITTED_ONLY)
        assert told["positions"][0]["offset"] == END
        topic.end(1, commit=True)
        assert by_offset(one.take(1)) == {END: "open"}


def test_subscribers_of_both_levels_do_not_share_pages(
    broker: Broker, topic: TransactionalTopic, unique: Unique
) -> None:
    with subscriber(broker.http_url) as every, subscriber(broker.http_url) as one:
        every.subscribe(unique("audit"), topic.name, read_old=True, encoding="text")
        assert by_offset(every.take(len(ALL) + 1)) == {**ALL, END: "open"}
        one.subscribe(unique("billing"), topic.name, read_old=True, **COMMITTED_ONLY)
        assert by_offset(one.take(len(COMMITTED))) == COMMITTED


def test_another_level_is_refused_by_name(broker: Broker, topic: TransactionalTopic, unique: Unique) -> None:
    with subscriber(broker.http_url) as one:
        told = one.subscribe(unique("billing"), topic.name, isolation="serializable")
        assert (told["type"], told["code"]) == ("error", "invalid_field")
        assert "isolation" in told["message"]
