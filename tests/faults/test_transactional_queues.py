"""Jobs and their results in transactions on three nodes: every role is killed in turn, and the worker as well."""

from pathlib import Path

import pytest

from penstock.cluster import offsets_partition
from tests.client.transactional_work import (
    RESULTS,
    TOPIC,
    TRANSACTIONAL_ID,
    check_each_once,
    working,
)
from tests.faults.clients import leader_of
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import open_http, restart

JOBS = 400
COORDINATORS = 4
STATES = 1


@pytest.mark.long
def test_each_job_has_one_result_although_every_role_is_killed(tmp_path: Path) -> None:
    flags = [
        *("--set", f"transactions.topic_partitions={COORDINATORS}"),
        *("--set", f"groups.state_topic_partitions={STATES}"),
    ]
    cluster = Cluster(tmp_path, flags=flags)
    open_http(cluster)
    roles = [
        ("__transaction_state", offsets_partition(TRANSACTIONAL_ID, COORDINATORS)),
        ("__share_group_state", 0),
        (TOPIC, 0),
        (RESULTS, 0),
    ]
    with cluster:
        with working(cluster.bootstrap_servers, JOBS, partitions=1, replication_factor=3) as worker:
            for number, (topic, partition) in enumerate(roles):
                worker.wait_for(60 * number + 30)
                victim = leader_of(cluster, topic, partition)
                cluster[victim].kill()
                worker.wait_for(60 * number + 60)
                restart(cluster, victim)
            worker.kill()
            worker.start()
            check_each_once(cluster.bootstrap_servers, JOBS)
        assert cluster.bugs() == []
