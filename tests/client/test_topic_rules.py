"""Which configs the client reads before it publishes a message with an id or a delay, and when."""

from collections.abc import Mapping

import pytest

from penstock.client import PublishFailed, topic_rules
from penstock.client.arguments import RecordHeaders
from penstock.client.errors import ClientError, Unreachable
from penstock.client.topic_rules import TopicRulesCache

ID: RecordHeaders = [("penstock-message-id", b"order-17")]
WEEK_MS = 7 * 24 * 3600 * 1000
DEDUPLICATES = {"dedup.window.ms": "60000", "retention.ms": "-1"}


class Topic:
    """Its configs, or the error of reading them, and how often they were read."""

    def __init__(self, configs: Mapping[str, str] | ClientError) -> None:
        self.configs = configs
        self.reads = 0

    def read(self, topic: str, timeout_s: float) -> Mapping[str, str]:
        self.reads += 1
        if isinstance(self.configs, ClientError):
            raise self.configs
        return self.configs


def delayed(delay_ms: object) -> RecordHeaders:
    return [("penstock-delay-ms", str(delay_ms))]


def test_messages_without_such_headers_cost_no_request() -> None:
    topic = Topic({})
    rules = TopicRulesCache(topic.read)
    assert rules.allows("t", [])
    assert rules.allows("t", [("trace", b"a"), ("penstock-ttl-ms", b"1")])
    assert topic.reads == 0


def test_configs_are_read_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(DEDUPLICATES)
    rules = TopicRulesCache(topic.read)
    assert not rules.allows("t", ID)
    rules.check("t", ID, 1.0)
    assert rules.allows("t", ID)
    assert topic.reads == 1
    monkeypatch.setattr(topic_rules, "RULES_SECONDS", -1.0)
    rules.check("t", ID, 1.0)
    assert not rules.allows("t", ID)


def test_a_message_is_refused_on_fresh_configs_only() -> None:
    topic = Topic({"dedup.window.ms": "0"})
    rules = TopicRulesCache(topic.read)
    with pytest.raises(PublishFailed, match="does not deduplicate"):
        rules.check("t", ID, 1.0)
    topic.configs = DEDUPLICATES
    assert not rules.allows("t", ID)
    rules.check("t", ID, 1.0)
    assert rules.allows("t", ID)


@pytest.mark.parametrize(
    ("configs", "delay", "is_allowed"),
    [
        ({"retention.ms": str(WEEK_MS)}, WEEK_MS, True),
        ({"retention.ms": str(WEEK_MS)}, WEEK_MS + 1, False),
        ({"retention.ms": str(WEEK_MS)}, "soon", True),
        ({"retention.ms": str(WEEK_MS), "penstock.retention.keep.undone": "true"}, WEEK_MS + 1, True),
        ({"retention.ms": str(WEEK_MS), "cleanup.policy": "compact"}, WEEK_MS + 1, True),
        ({"retention.ms": str(WEEK_MS), "cleanup.policy": "compact,delete"}, WEEK_MS + 1, False),
        ({"retention.ms": "-1"}, 10**30, True),
    ],
)
def test_a_delay_is_compared_with_the_retention(
    configs: dict[str, str], delay: object, is_allowed: bool
) -> None:
    rules = TopicRulesCache(Topic(configs).read)
    if is_allowed:
        rules.check("t", delayed(delay), 1.0)
    else:
        with pytest.raises(PublishFailed, match=r"retention\.ms"):
            rules.check("t", delayed(delay), 1.0)


def test_old_configs_suffice_while_no_broker_answers_and_none_do_not() -> None:
    topic = Topic(DEDUPLICATES)
    rules = TopicRulesCache(topic.read)
    rules.check("t", ID, 1.0)
    topic.configs = Unreachable("no broker answers")
    rules.check("t", ID, 1.0)
    with pytest.raises(PublishFailed, match=r"no broker answers.*Nothing was stored") as failed:
        rules.check("another", ID, 0.0)
    assert failed.value.retriable
