"""The example of Spark Declarative Pipelines runs as it is, against a broker of the test's own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock import Broker
from penstock.spark.java import why_not
from tests.spark.conftest import JVM_OPTIONS

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative_pipeline"
PATIENCE_S = 280


def values_of(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        found += [message.value() for message in consumer.consume(count - len(found), timeout=60)]
    consumer.close()
    return found


@pytest.mark.long  # a JVM and a Spark Connect server of its own
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("jvms")
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "Java is there")
def test_the_example_project_reads_a_topic_and_writes_one(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(re.sub(r"(?m)^storage: .*$", f"storage: file://{tmp_path}/storage", spec.read_text()))
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        for number in range(40):
            order = {"id": number, "customer": f"c{number % 3}", "amount": number * 5}
            producer.produce("orders", json.dumps(order).encode())
        producer.produce("orders", json.dumps({"id": 39, "customer": "c0", "amount": 195}).encode())  # again
        producer.produce("orders", b"no order")
        for number in range(2):
            producer.produce("customers", json.dumps({"city": f"city {number}"}).encode(), key=f"c{number}")
        assert producer.flush(20) == 0
        environment = {
            **os.environ,
            "PENSTOCK_BOOTSTRAP": broker.bootstrap_servers,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": JVM_OPTIONS,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["spark-pipelines", "run", "--spec", "spark-pipeline.yml"],
            cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert len(values_of(broker, "orders-large", 21)) == 21
        assert values_of(broker, "orders.dlq", 1) == [b"no order"]
        full = values_of(broker, "orders-full", 41)
        assert full.count(b"no order") == 1
        orders = [json.loads(value) for value in full if value != b"no order"]
        assert sorted(order["id"] for order in orders) == list(range(40)), "each once"
        assert {order["customer"]: order["customer_row"] for order in orders} == {
            "c0": {"city": "city 0"},
            "c1": {"city": "city 1"},
            "c2": None,
        }
