"""A number for each partition, as an expression over the columns topic and partition."""

from collections import defaultdict
from collections.abc import Mapping

from penstock.types import TopicPartition


def per_partition(numbers: Mapping[TopicPartition, int]) -> str:
    """SQL: a long, null for topics that are not named, and for partitions beyond the last that is. Topics have names
    without quotes in them; partitions that are not named have 0."""
    by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for tp, number in numbers.items():
        by_topic[tp.topic][tp.partition] = number
    if not by_topic:
        return "CAST(NULL AS BIGINT)"
    cases = " ".join(
        f"WHEN '{topic}' THEN get(array({_listed(found)}), partition)"
        for topic, found in sorted(by_topic.items())
    )
    return f"CASE topic {cases} END"


def _listed(numbers: Mapping[int, int]) -> str:
    return ", ".join(f"{numbers.get(partition, 0)}L" for partition in range(max(numbers) + 1))
