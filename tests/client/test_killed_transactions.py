"""Jobs and their results in transactions, while the client and the broker are killed: each result exactly once.

Processes must start, be killed and start again, so this takes several seconds.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.transactional_work import check_each_once, working
from tests.web.test_push_crash import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "data")
    one.start()
    yield one
    one.end(signal.SIGTERM)


def test_each_job_has_one_result_although_worker_and_broker_are_killed(served: Served) -> None:
    with working(served.bootstrap_servers, 40) as worker:
        worker.wait_for(10)
        worker.kill()
        worker.start()
        worker.wait_for(20)
        served.end(signal.SIGKILL)
        served.start()
        check_each_once(served.bootstrap_servers, 40)


@pytest.mark.long
def test_each_job_has_one_result_although_workers_and_brokers_are_killed_again_and_again(
    served: Served,
) -> None:
    with working(served.bootstrap_servers, 400) as worker:
        for share in range(40, 400, 60):
            worker.wait_for(share - 10)
            worker.kill()
            worker.start()
            worker.wait_for(share)
            served.end(signal.SIGKILL)
            served.start()
        check_each_once(served.bootstrap_servers, 400)
