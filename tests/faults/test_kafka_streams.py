"""Kafka Streams counts words with `exactly_once_v2` while the application and the broker are killed: each word is
counted once."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.faults.checks import read_all
from tests.faults.clients import create_topic
from tests.faults.load import Load
from tests.faults.nodes import Cluster
from tests.faults.results_topic import ResultsTopic
from tests.kafka.programs.builds import word_count
from tests.kafka.programs.pipe import Program

pytestmark = pytest.mark.long

SOURCE, RESULTS = "lines", "counts"
PARTITIONS = 2
BETWEEN_FAULTS = 1000
"""Counts that are written before the next fault: some hundred lines."""


def words_of(cluster: Cluster) -> Counter[str]:
    """A line is `lines-0:17`: one word is in all lines, most are in few."""
    stored = read_all(cluster.bootstrap_servers, SOURCE, PARTITIONS)
    lines = [value.decode() for rows in stored.values() for value in rows.values()]
    return Counter(word for line in lines for word in re.split(r"\W+", line))


def assert_counted_once(cluster: Cluster, results: ResultsTopic) -> None:
    """The results have each word with the counts 1, 2, 3 ... up to the number of times that it is in the source."""
    words = words_of(cluster)
    found: dict[str, list[int]] = defaultdict(list)
    for messages in results.wait_for_records(words.total()):
        for message in messages:
            found[(message.key() or b"").decode()].append(int(message.value() or b"0"))
    assert found == {word: list(range(1, count + 1)) for word, count in words.items()}


def test_words_are_counted_once_although_the_application_and_the_broker_are_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        create_topic(cluster, SOURCE, PARTITIONS, replicas=1)
        create_topic(cluster, RESULTS, PARTITIONS, replicas=1)
        results = ResultsTopic(cluster, RESULTS, PARTITIONS)
        command = word_count(cluster.bootstrap_servers, str(tmp_path / "state"), SOURCE, RESULTS)
        with Load(cluster, SOURCE, partitions=PARTITIONS, producers=1) as load:
            with Program(command, tmp_path / "first.log") as first:
                results.wait_for_more(BETWEEN_FAULTS)
                first.kill()
            with Program(command, tmp_path / "second.log"):
                results.wait_for_more(BETWEEN_FAULTS)
                cluster[1].kill()
                cluster[1].start()
                cluster[1].wait_ready()
                results.wait_for_more(BETWEEN_FAULTS)
                load.stop()
                assert_counted_once(cluster, results)
        assert not cluster.bugs()
