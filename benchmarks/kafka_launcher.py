"""Apache Kafka on this machine, for comparison: fetched from Maven Central, one KRaft node, its own defaults.

`fetch()` puts the jars into `.cache/kafka-VERSION/` with the help of Maven and leaves them there, and `fetch_tools()`
those of Kafka's clients, command line tools and MirrorMaker into a folder beside it, for tests; `fetch_streams()` has
those of Kafka Streams. `Kafka` formats a data folder, starts a broker with the JVM flags of Kafka's own start script,
and stops it. Kafka does not flush before it acknowledges (its default), where Penstock with acks=all always does.
"""

import base64
import re
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Self

from start_time import free_port, seconds_until_serving

VERSION = "4.2.1"
TOOLS_VERSION = "4.3.1"
"""Of 4.2.1 not every mirror has all artefacts of MirrorMaker, and of 4.4.0 none of Kafka Streams."""
CLIENTS_VERSION = "4.4.0"
"""The version of Kafka's protocol that Penstock speaks."""
ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
JVM_FLAGS = [
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]  # fmt: skip
STOP_TIMEOUT_S = 30

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>kafka-for-comparison</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{artefacts}
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""

ARTEFACT = """
    <dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"""

PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class Unavailable(Exception):
    """Kafka cannot be had here; the message says what is missing."""


def fetch(version: str = VERSION) -> Path:
    """The folder with the jars of Kafka's broker; downloads them when they are not there yet."""
    return _fetch_jars(f"kafka-{version}", version, ("kafka_2.13",))


def fetch_tools(version: str = TOOLS_VERSION) -> Path:
    """The folder with the jars of Kafka's clients, tools and MirrorMaker. (`kafka-configs` is in the broker's.)"""
    return _fetch_jars(f"kafka-tools-{version}", version, ("kafka_2.13", "kafka-tools", "connect-mirror"))


def fetch_streams(version: str = TOOLS_VERSION) -> Path:
    """The folder with the jars of Kafka Streams."""
    return _fetch_jars(f"kafka-streams-{version}", version, ("kafka-streams",))


def fetch_clients(version: str = CLIENTS_VERSION) -> Path:
    """The folder with the jar of Kafka's Java client, which also has the schemas of all messages."""
    return _fetch_jars(f"kafka-clients-{version}", version, ("kafka-clients",))


def _fetch_jars(name: str, version: str, artefacts: tuple[str, ...]) -> Path:
    if shutil.which("java") is None:
        raise Unavailable("there is no `java`: install a JRE of version 17 or newer")
    folder = CACHE / name
    if (folder / "complete").exists():
        return folder / "libs"
    if shutil.which("mvn") is None:
        raise Unavailable("there is no `mvn`: install Maven, which fetches Kafka from Maven Central")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = "".join(ARTEFACT.format(name=one, version=version) for one in artefacts)
    (folder / "pom.xml").write_text(POM.format(artefacts=wanted))
    _run_maven(folder, version)
    (folder / "complete").touch()
    return folder / "libs"


def _run_maven(folder: Path, version: str) -> None:
    command = [
        "mvn",
        "--quiet",
        "--batch-mode",
        "--file",
        str(folder / "pom.xml"),
        "dependency:copy-dependencies",
    ]
    command += [f"-DoutputDirectory={folder / 'libs'}", "-DincludeScope=runtime"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        reason = re.sub(r"\x1b\[[0-9;]*m", "", errors[0]) if errors else "it said nothing"
        raise Unavailable(f"Maven could not fetch Kafka {version} (is Maven Central reachable?): {reason}")


class Kafka:
    """A broker that serves from `start()` to `stop()`. May be started again after a stop: its data stays."""

    def __init__(self, libs: Path, folder: Path) -> None:
        self._classpath = f"{libs}/*"
        self._folder = folder
        self.port = free_port()
        self._config = folder / "server.properties"
        self._log = folder / "kafka.log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(PROPERTIES.format(port=self.port, controller=free_port(), folder=folder))
        self._format()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = ["java", "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        command += [f"--cluster-id={cluster_id}", "--config", str(self._config)]  # an id may begin with "-"
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(
                f"Kafka could not format its folder: {done.stderr.strip() or done.stdout.strip()}"
            )

    def start(self) -> float:
        """Seconds from starting the process to its first answer."""
        command = ["java", *JVM_FLAGS, "-cp", self._classpath, "kafka.Kafka", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            return seconds_until_serving(self._process, self.port)
        except TimeoutError as failure:
            self.stop()
            last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Unavailable(f"Kafka did not start ({failure}): {' | '.join(last)}") from None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
