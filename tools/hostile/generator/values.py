"""Values that programs forget to expect."""

import random
from typing import Final

TOPICS: Final = ("victim", "victim-wide", "made-0", "made-1", "__consumer_offsets", "__share_group_state")
GROUPS: Final = ("victims", "jobs", "push", "group-0", "group-1")
MEMBERS: Final = ("", "member-1", "member-2", "AAAAAAAAAAAAAAAAAAAAAA")
CONFIGS: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "segment.bytes",
    "compression.type",
    "min.insync.replicas",
    "dedup.window.ms",
    "penstock.retention.keep.undone",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "penstock.queue.order",
    "penstock.dead.letter.topic",
)
CONFIG_VALUES: Final = (
    "1",
    "-1",
    "0",
    "1000",
    "compact",
    "delete",
    "zstd",
    "true",
    "key",
    "nonsense",
    str(2**63),
)

LONG: Final = "n" * 249
STRINGS: Final = (
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "\0",
    "\n",
    LONG,
    LONG + "n",
    "n" * 32_767,
    "ä" * 16_383,
    "\U0001f600" * 100,
    "%s%n{}",
    "true",
    "-1",
    "__consumer_offsets",
    "canary\n",
)
COUNTS: Final = (0, 2, 3, 50, 1_000, 10_000, 80_000)
MOST_DISTINCT: Final = 200


def hostile_integer(chance: random.Random, bits: int) -> int:
    """An integer that fits so many bits, signed."""
    most = (1 << (bits - 1)) - 1
    edges = (most, most - 1, -most - 1, -most, -1, -2, 0, 1, 2**31 - 1, -(2**31), 2**53, 2**62, -(2**62))
    value = chance.choice((*edges, chance.randint(-most - 1, most)))
    return max(-most - 1, min(most, value))


def hostile_string(chance: random.Random) -> str:
    return chance.choice((*STRINGS, "x" * chance.randint(1, 400)))
