"""Spark's own Kafka connector, for comparison: its jars from Maven Central, in `.cache/connector-VERSION/`.

The newest connector that can be had is taken. It may be one minor version behind PySpark: its classes fit the newer
Spark, which the comparison itself shows by running.
"""

import shutil
import subprocess
from pathlib import Path

from kafka_launcher import CACHE, Unavailable

ARTEFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "{connector}"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "{tokens}"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
NO_OTHERS = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
"""PySpark has all its other dependencies. Without this, Maven would ask servers that Spark's own build names."""

FALLBACKS = (("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"))
"""Versions of the connector and of its token provider that go together; not every release is on every mirror."""


def fetch(spark_version: str) -> tuple[str, list[Path]]:
    """The connector's version and its jars."""
    if shutil.which("mvn") is None:
        raise Unavailable("there is no `mvn`: install Maven, which fetches the connector from Maven Central")
    for connector, tokens in ((spark_version, spark_version), *FALLBACKS):
        folder = CACHE / f"connector-{connector}-{tokens}"
        if (folder / "complete").exists() or _copied(folder, connector, tokens):
            return connector, sorted((folder / "libs").glob("*.jar"))
    raise Unavailable("Maven could not fetch Spark's Kafka connector (is Maven Central reachable?)")


def _copied(folder: Path, connector: str, tokens: str) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_pom(connector, tokens))
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(folder / "pom.xml")]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return False
    (folder / "complete").touch()
    return True


def _pom(connector: str, tokens: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version.format(connector=connector, tokens=tokens)}</version>{NO_OTHERS}</dependency>"
        for group, name, version in ARTEFACTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>penstock</groupId><artifactId>connector-for-comparison</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
