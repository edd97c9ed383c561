"""Rows survive what kills their writers, executors and drivers, without a farewell. Each job has its own processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock import Broker
from penstock.spark.java import why_not
from tests.spark.test_sink import read_topic

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("spark"),
]

ROWS = 100_000
PARTITIONS = 3
PATIENCE_SECONDS = 300.0
EXECUTOR = "CoarseGrainedExecutorBackend"

SESSION = """
import sys
from pyspark.sql import SparkSession
servers, topic, folder = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": folder + "/warehouse", "spark.executor.memory": "512m",
            "spark.log.level": "ERROR"}
builder = SparkSession.builder.master(MASTER)
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
# Small requests, one at a time: there is time to kill somebody.
OPTIONS = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.batch.size": "400", "kafka.buffer.memory": "2000",
           "kafka.max.request.size": "2048", "kafka.max.in.flight.requests.per.connection": "1"}
"""

BATCH_JOB = (
    'MASTER = "local-cluster[2,1,1024]"'
    + SESSION
    + f"""
rows = spark.range(0, {ROWS}, 1, 6).selectExpr("cast(id as string) as key", "cast(id as string) as value")
rows.write.format("penstock").mode("append").options(**OPTIONS).save()
"""
)

STREAM_JOB = (
    'MASTER = "local[2]"'
    + SESSION
    + f"""
from pathlib import Path
if not Path(folder, "ready").exists():
    rows = spark.range(0, {ROWS}, 1, 4).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.parquet(folder + "/rows")
    Path(folder, "ready").touch()
stream = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).parquet(folder + "/rows")
writer = stream.writeStream.format("penstock").options(**OPTIONS).option("checkpointLocation", folder + "/checkpoint")
assert writer.trigger(availableNow=True).start().awaitTermination({PATIENCE_SECONDS})
"""
)


@contextmanager
def running(job: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A Spark job and all that it starts; nothing of it is left afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", job, *arguments],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_whole(process)


def kill_whole(process: "subprocess.Popen[bytes]") -> None:
    """Spark puts its JVM and its workers into groups of their own, so they are found by descent."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        with_pid(member.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    psutil.wait_procs(family, timeout=PATIENCE_SECONDS)


def executors_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    family = psutil.Process(process.pid).children(recursive=True)
    return [member for member in family if EXECUTOR in command_of(member)]


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a worker that has just ended
        return ""


def with_pid(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_for_records(broker: Broker, topic: str, count: int, process: "subprocess.Popen[bytes]") -> None:
    """Returns when a topic holds so many records; they are consumed as they come."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    seen = 0
    while seen < count:
        assert process.poll() is None, f"the job ended with {process.poll()} before it was killed"
        seen += sum(1 for message in consumer.consume(1000, 1) if not message.error())
    consumer.close()


def assert_nothing_lost(broker: Broker, topic: str) -> None:
    found = {int(record.value or b"") for record in read_topic(broker.bootstrap_servers, topic, PARTITIONS)}
    assert found == set(range(ROWS))


def test_no_row_is_lost_with_an_executor(
    broker: Broker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic("executor", PARTITIONS)
    with running(BATCH_JOB, broker.bootstrap_servers, topic, str(tmp_path)) as job:
        wait_for_records(broker, topic, ROWS // 20, job)
        victims = executors_of(job)
        assert len(victims) == 2
        victims[0].kill()
        assert job.wait(PATIENCE_SECONDS) == 0
    assert_nothing_lost(broker, topic)


def test_no_row_is_lost_with_a_driver(broker: Broker, make_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = make_topic("driver", PARTITIONS)
    arguments = broker.bootstrap_servers, topic, str(tmp_path)
    with running(STREAM_JOB, *arguments) as job:
        wait_for_records(broker, topic, ROWS // 4, job)
        kill_whole(job)
    with running(STREAM_JOB, *arguments) as job:
        assert job.wait(PATIENCE_SECONDS) == 0
    assert_nothing_lost(broker, topic)
