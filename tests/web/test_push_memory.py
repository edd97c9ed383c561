"""Subscriptions to topics in memory: their positions are on disk, and their logs are not."""

from pathlib import Path

from penstock import Broker
from tests.web.pushing import create, produce, subscriber, values


def use(broker: Broker, messages: list[str]) -> list[str]:
    """Publishes, subscribes and acks; returns the pushed messages."""
    produce(broker.bootstrap_servers, "ticks", messages)
    with subscriber(broker.http_url) as one:
        one.subscribe("ledger", "ticks", read_old=True)
        came = one.take(len(messages))
        one.ack_durably(came[-1])
        assert one.nothing_more()
        return values(came)


def test_messages_after_a_restart_are_pushed_even_if_their_offsets_were_acked_before(tmp_path: Path) -> None:
    """Fewer, more, and as many as before: the offsets alone do not tell."""
    rounds = [
        [f"{name}{number}" for number in range(count)]
        for name, count in (("a", 20), ("b", 5), ("c", 40), ("d", 40))
    ]
    for number, messages in enumerate(rounds):
        with Broker(data_dir=tmp_path) as broker:
            if number == 0:
                create(broker.bootstrap_servers, "ticks", penstock_storage="memory")
            assert use(broker, messages) == messages


def test_without_a_restart_a_subscription_resumes_at_its_position(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        create(broker.bootstrap_servers, "ticks", penstock_storage="memory")
        for messages in (["a", "b"], ["c"], ["d", "e", "f"]):
            assert use(broker, messages) == messages
