"""Whether a topic can do what a message asks for: remember its id, keep it until it is due.

The broker does not open messages when it stores them, so it cannot refuse an id that has no effect, or a message that
retention will delete before it is due. The client can: it reads the configs of the topic before the first such message,
and again after RULES_SECONDS. Other messages cost nothing.

    R1  A message is refused only on configs that were read for it: after a config was changed, the next message passes.
    R2  While no broker answers, configs that were read before suffice; without any, the message is not published.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.client.arguments import DELAY, DELIVER_AT, MESSAGE_ID, RecordHeaders
from penstock.client.errors import ClientError, PublishFailed, Unreachable

RULES_SECONDS: Final = 60.0
ASK_AGAIN_SECONDS: Final = 0.1
NEW_TOPIC_SECONDS: Final = 3.0
"""A topic that was just created may not be known on all nodes."""

DEDUP_WINDOW: Final = "dedup.window.ms"
KEEP_UNDONE: Final = "penstock.retention.keep.undone"

ReadConfigs = Callable[[str, float], Mapping[str, str]]
"""The configs of a topic, read within so many seconds; ClientError if that fails."""


class UnsuitableTopic(PublishFailed):
    """The topic cannot do what the message asks for; `configs` would make it suitable."""

    def __init__(self, topic: str, reason: str, configs: Mapping[str, str], remedy: str) -> None:
        super().__init__(
            f"publishing to {topic}: {reason}: client.admin.alter_topic({topic!r}, {dict(configs)!r}){remedy}. "
            "Nothing was stored."
        )
        self.reason = reason
        self.configs = dict(configs)


class CachedTopicRules(NamedTuple):
    """What a topic can do, and until when (on the monotonic clock) that is not read again."""

    has_window: bool
    retention_ms: int | None
    """Messages may be deleted after this time, done or not; None: not before they are done, or not by their age."""
    until: float


class TopicRulesCache:
    """Usable from all threads: two of them may read the same configs at once, which does no harm."""

    def __init__(self, read: ReadConfigs) -> None:
        self._read = read
        self._known: dict[str, CachedTopicRules] = {}

    def allows(self, topic: str, headers: RecordHeaders) -> bool:
        """Whether the message may be published, by rules that are known."""
        if not headers or not _asks(headers):
            return True
        rules = self._known.get(topic)
        return (
            rules is not None and time.monotonic() < rules.until and _refusal(topic, headers, rules) is None
        )

    def check(self, topic: str, headers: RecordHeaders, timeout_s: float) -> None:
        """Reads the topic's configs. Raises UnsuitableTopic if it cannot do what the message asks for (R1)."""
        refusal = _refusal(topic, headers, self._look_up(topic, timeout_s))
        if refusal is not None:
            raise refusal

    def _look_up(self, topic: str, timeout_s: float) -> CachedTopicRules:
        began = time.monotonic()
        while True:
            try:
                rules = self._known[topic] = _rules(self._read(topic, max(timeout_s, ASK_AGAIN_SECONDS)))
            except ClientError as failure:
                if isinstance(failure, Unreachable) and topic in self._known:
                    return self._known[topic]  # R2
                if time.monotonic() - began >= min(timeout_s, NEW_TOPIC_SECONDS):
                    raise PublishFailed(
                        f"{failure}. Nothing was stored.", retriable=failure.retriable
                    ) from None
                time.sleep(ASK_AGAIN_SECONDS)
            else:
                return rules


def _rules(configs: Mapping[str, str]) -> CachedTopicRules:
    retention_ms: int | None = int(configs.get("retention.ms", "-1"))
    deletes = "delete" in configs.get("cleanup.policy", "delete").split(",")
    if not deletes or retention_ms == -1 or configs.get(KEEP_UNDONE) == "true":
        retention_ms = None
    return CachedTopicRules(
        int(configs.get(DEDUP_WINDOW, "0")) > 0, retention_ms, time.monotonic() + RULES_SECONDS
    )


def _asks(headers: RecordHeaders) -> bool:
    return any(name in (MESSAGE_ID, DELAY, DELIVER_AT) for name, _ in headers)


def _refusal(topic: str, headers: RecordHeaders, rules: CachedTopicRules) -> UnsuitableTopic | None:
    if not rules.has_window and any(name == MESSAGE_ID for name, _ in headers):
        return UnsuitableTopic(
            topic,
            "it does not deduplicate, so a message id has no effect",
            {DEDUP_WINDOW: "600000"},
            ", or create_queue(..., dedup=600), sets how long ids are remembered",
        )
    delay_ms = _delay_ms(headers)
    if rules.retention_ms is None or delay_ms is None or delay_ms <= rules.retention_ms:
        return None
    return UnsuitableTopic(
        topic,
        f"the message is due after the topic's retention.ms ({rules.retention_ms}), when it may be deleted",
        {KEEP_UNDONE: "true"},
        " keeps it",
    )


def _delay_ms(headers: RecordHeaders) -> float | None:
    """From now on; None if the message is due at once, or a header is no number (queues ignore that)."""
    delay_ms: float | None = None
    for name, value in headers:
        if name not in (DELAY, DELIVER_AT) or value is None:
            continue
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
        if text.isascii() and text.isdigit():
            delay_ms = float(text) - (time.time() * 1000 if name == DELIVER_AT else 0)
    return delay_ms
