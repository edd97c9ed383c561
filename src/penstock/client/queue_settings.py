"""The settings of a queue as `create_queue` and `alter_queue` take them, and the group configs that store them."""

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from penstock.client.arguments import Seconds, as_ms


class QueueSettings(TypedDict, total=False):
    """Settings that are left out, or None, stay as they are; for a new queue the broker's defaults apply."""

    lease: Seconds | None
    """How long a consumer may work on a job before another one gets it; 1 second to 1 hour (30 seconds). Clients renew
    leases by themselves."""
    max_deliveries: int | None
    """How often a job is delivered before it is a dead letter (5); 0: no limit."""
    key_ordered: bool | None
    """Whether the next job of a key is delivered only when the one before it is done."""
    exclusive: bool | None
    """Whether one consumer at a time gets jobs, in strict order, while the others stand by."""
    dead_letters: bool | None
    """Whether jobs that were rejected, or delivered too often, are copied to the dead-letter topic. Otherwise they are
    dropped."""
    dead_letter_topic: str | None
    """By default the topic's name with .dlq appended."""
    backoff: Seconds | None
    """The delay of a job that is retried without one (0)."""
    backoff_factor: float | None
    """How many times as long the delay is after each further attempt (2)."""
    max_backoff: Seconds | None
    """The longest of these delays (1 minute)."""
    max_leased: int | None
    """The most jobs of one partition that consumers have at once (100,000)."""


def _ms(name: str, value: Any) -> str:
    return str(as_ms(name, value))


def _flag(name: str, value: Any) -> str:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: expected True, False or None")
    return str(value).lower()


def _order(name: str, value: Any) -> str:
    return "key" if _flag(name, value) == "true" else "none"


def _text(_name: str, value: Any) -> str:
    return str(value)


CONFIGS: Final = {
    "lease": ("share.record.lock.duration.ms", _ms),
    "max_deliveries": ("share.delivery.count.limit", _text),
    "key_ordered": ("penstock.queue.order", _order),
    "exclusive": ("penstock.queue.exclusive", _flag),
    "dead_letters": ("penstock.dead.letter.enable", _flag),
    "dead_letter_topic": ("penstock.dead.letter.topic", _text),
    "backoff": ("penstock.retry.backoff.ms", _ms),
    "backoff_factor": ("penstock.retry.backoff.factor", _text),
    "max_backoff": ("penstock.retry.backoff.max.ms", _ms),
    "max_leased": ("share.partition.max.record.locks", _text),
}
"""The group config of each setting, and the function that writes its value."""


def group_configs(settings: QueueSettings) -> dict[str, str]:
    """Those that were given. TypeError for a setting that does not exist."""
    given: Mapping[str, Any] = settings
    for name in given:
        if name not in CONFIGS:
            raise TypeError(
                f"{name}={given[name]!r}: a queue has no such setting; there are {', '.join(CONFIGS)}"
            )
    named = ((*CONFIGS[name], name, value) for name, value in given.items() if value is not None)
    return {config: write(name, value) for config, write, name, value in named}
