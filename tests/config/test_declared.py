"""`[[topics]]` and `[[queues]]` of the config file."""

import pytest

from penstock.config import DeclaredQueue, DeclaredTopic, NodeConfig
from penstock.config.loading import load_node_config
from penstock.errors import ConfigError


def load(text: str) -> NodeConfig:
    return load_node_config(toml_text=text, toml_name="penstock.toml")


def test_topics_and_queues_are_read_with_their_configs_as_text() -> None:
    config = load(
        """
        num_partitions = 2
        [[topics]]
        name = "orders"
        partitions = 6
        configs = { "retention.ms" = 86400000, "cleanup.policy" = ["compact", "delete"] }

        [[topics]]
        name = "clicks"

        [[queues]]
        name = "mail"
        topic = "outbox"
        lease_ms = 60000
        dead_letters = false
        [queues.configs]
        "penstock.retry.backoff.factor" = 1.5
        """
    )
    orders, clicks = config.topics
    assert (orders.partitions, clicks) == (6, DeclaredTopic(name="clicks"))
    assert orders.config_texts == {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}
    [mail] = config.queues
    assert (mail.topic, mail.lease_ms, mail.dead_letters) == ("outbox", 60_000, False)
    assert mail.config_texts == {"penstock.retry.backoff.factor": "1.5"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[topics]]\npartitions = 3", "topics in penstock.toml, table 1"),
        ("[[topics]]\nname = 'a b'", "table 1"),
        ("[[topics]]\nname = 'a'\n[[topics]]\nname = 'b'\npartition = 3", "table 2"),
        ("[[topics]]\nname = 'a'\n[[topics]]\nname = 'a'", "each name once"),
        ("[[topics]]\nname = 'a'\nconfigs = {'retention.msec' = 1}", "retention.msec"),
        ("[[queues]]\nname = 'a'\nconfigs = {'no.such.config' = 1}", "no.such.config"),
        ("[[queues]]\nname = 'a'\nstart = 'middle'", "table 1"),
        (
            "[[queues]]\nname = 'a'\npoint_to_point = true\npartitions = 3",
            "partitions of queue a=3: expected 1",
        ),
        ("[topics]\nname = 'a'", "[[topics]]"),
    ],
)
def test_mistakes_are_named_with_their_table(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(text)
    assert said in str(raised.value)


def test_they_cannot_come_from_the_environment() -> None:
    with pytest.raises(ConfigError, match="config file only"):
        load_node_config(environment={"PENSTOCK_TOPICS": "orders"})


def test_a_config_that_is_built_by_hand_is_checked_too() -> None:
    wrong = NodeConfig(queues=(DeclaredQueue(name="a", configs={"no.such.config": "1"}),))
    with pytest.raises(ConfigError, match=r"no\.such\.config"):
        wrong.validate()
