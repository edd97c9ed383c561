"""Plans over all partitions of a cluster. Those of a large one are made in a thread: 10,000 partitions take about a
second."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from penstock.cluster import ClusterState

T = TypeVar("T")

PLANNED_IN_LOOP = 500
"""Partitions; each takes up to 100 µs."""


async def planned(copy: ClusterState, plan: Callable[[ClusterState], T]) -> T:
    """The result of a pure function. `copy` is a copy of the cluster's state, which goes on to change."""
    if copy.partition_count <= PLANNED_IN_LOOP:
        return plan(copy)
    return await asyncio.get_running_loop().run_in_executor(None, plan, copy)
