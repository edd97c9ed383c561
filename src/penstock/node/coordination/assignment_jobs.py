"""Computes large assignments of consumer groups in a thread, so that the event loop serves other clients meanwhile."""

import asyncio
from functools import partial

from penstock.groups import AssignmentJob, Coordinator, compute_assignment
from penstock.node.coordination.core_host import CoreHost


class AssignmentJobs:
    """The sender of the group coordinators: their only messages are jobs."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __call__(self, host: CoreHost[Coordinator], message: object) -> None:
        assert isinstance(message, AssignmentJob)
        task = asyncio.get_running_loop().create_task(self._run(host, message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, host: CoreHost[Coordinator], job: AssignmentJob) -> None:
        target = await asyncio.get_running_loop().run_in_executor(None, compute_assignment, job)
        computed = partial(
            host.core.assignment_computed, group_id=job.group_id, epoch=job.epoch, target=target
        )
        if not host.is_stopped:
            host.tell(computed)

    def stop(self) -> None:
        for task in self._running:
            task.cancel()
