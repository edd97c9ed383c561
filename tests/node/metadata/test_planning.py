"""Plans over all partitions of a large cluster are made in a thread, on a copy of the state."""

import asyncio
import threading

import pytest

from penstock.cluster import ClusterState
from penstock.node.metadata import planning
from tests.cluster.clusters import cluster_of, create


def thread_of_plan(partitions: int) -> tuple[threading.Thread, threading.Thread]:
    """The thread that plans, and the event loop's."""
    state = cluster_of(1)
    create(state, "t", partitions)

    def plan(copy: ClusterState) -> threading.Thread:
        assert copy is state
        return threading.current_thread()

    async def scenario() -> tuple[threading.Thread, threading.Thread]:
        return await planning.planned(state, plan), threading.current_thread()

    return asyncio.run(scenario())


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_plan_over_many_partitions_is_made_in_a_thread(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "PLANNED_IN_LOOP", 2)
    planner, loop = thread_of_plan(partitions)
    assert (planner is loop) == (partitions <= 2)
