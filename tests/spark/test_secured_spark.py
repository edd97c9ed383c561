"""Spark jobs with brokers that require login and TLS, on the driver and on executors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import ResourceType
from pyspark.sql import SparkSession

from penstock.spark.pipelines import archive
from tests.secured import CREATE, PASSWORDS, READ, TOPIC, WRITE, SecuredNode, secured_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def options(node: SecuredNode, user: str = "alice", password: str | None = None) -> dict[str, str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    secret = password or PASSWORDS[user]
    return {
        "kafka.bootstrap.servers": node.address("tls"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": f'{module} required username="{user}" password="{secret}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": node.certificates.ca,
    }


@pytest.fixture
def topic(node: SecuredNode, unique) -> str:
    name = unique("orders")
    node.allow("alice", TOPIC, name, READ, WRITE, CREATE)
    return name


def test_rows_are_written_and_read_and_no_plan_has_the_password(
    spark: SparkSession, node: SecuredNode, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = (
        spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value").repartition(3)
    )
    rows.write.format("penstock").options(**options(node), topic=topic).mode("append").save()
    read = spark.read.format("penstock").options(**options(node), subscribe=topic).load()
    assert read.count() == 100
    read.explain(extended=True)
    plans = str(read._jdf.queryExecution())  # type: ignore[operator]
    said = capfd.readouterr()
    assert "penstock" in f"{said.out}{plans}"
    assert PASSWORDS["alice"] not in f"{said.out}{said.err}{plans}{read!r}"


def test_a_stream_reads_and_writes(
    spark: SparkSession, node: SecuredNode, topic: str, unique, checkpoint: str
) -> None:
    target = unique("copies")
    node.allow("alice", TOPIC, target, READ, WRITE, CREATE)
    node.allow("alice", ResourceType.TRANSACTIONAL_ID, "*", WRITE)
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    rows.write.format("penstock").options(**options(node), topic=topic).mode("append").save()
    stream = (
        spark.readStream.format("penstock")
        .options(**options(node), subscribe=topic, startingOffsets="earliest", commitProgress="false")
        .load()
        .select("value")
    )
    writer = stream.writeStream.format("penstock").options(**options(node), topic=target, exactlyOnce="true")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    progress = str(query.lastProgress)
    assert PASSWORDS["alice"] not in progress
    copies = spark.read.format("penstock").options(**options(node), subscribe=target).load()
    assert copies.count() == 10
    for file in Path(checkpoint).rglob("*"):
        assert file.is_dir() or PASSWORDS["alice"].encode() not in file.read_bytes()


def test_a_wrong_password_and_a_missing_right_are_told(
    spark: SparkSession, node: SecuredNode, topic: str
) -> None:
    reader = spark.read.format("penstock").options(
        **options(node, password="wrong-password"), subscribe=topic
    )
    with pytest.raises(Exception, match=r"LoginFailed.*does not accept the login by SCRAM-SHA-256") as told:
        reader.load().count()
    assert "wrong-password" not in str(told.value)
    reader = spark.read.format("penstock").options(**options(node, "bob"), subscribe=topic)
    with pytest.raises(Exception, match="no DESCRIBE permission"):
        reader.load().count()


def test_a_file_that_an_executor_does_not_have_is_told(
    spark: SparkSession, node: SecuredNode, topic: str
) -> None:
    given = {**options(node), "kafka.ssl.truststore.location": "/nowhere/ca.pem"}
    with pytest.raises(Exception, match=r"'/nowhere/ca.pem' cannot be used.*on each executor"):
        spark.read.format("penstock").options(**given, subscribe=topic).load().count()


def test_pipelines_take_the_same_options(
    spark: SparkSession, node: SecuredNode, topic: str, unique, tmp_path: Path
) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) as key", "'{\"n\": 1}' as value")
    rows.write.format("penstock").options(**options(node), topic=topic).mode("append").save()
    security = {name: value for name, value in options(node, "admin").items() if "bootstrap" not in name}
    archive(spark, topic, str(tmp_path / "archive"), bootstrap_servers=node.address("tls"), options=security)
    for file in (tmp_path / "archive").rglob("*"):
        assert file.is_dir() or PASSWORDS["admin"].encode() not in file.read_bytes()
