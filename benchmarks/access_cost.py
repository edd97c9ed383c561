"""The cost of decisions on permissions: the broker's CPU per Produce request without an authorizer, and with a user
who has few and many access rules.

All nodes run at the same time, in memory, and are loaded in turns, for a short while each. A figure is the median of the
ratios to the node without an authorizer in the same turn, so that a machine that is busy for a while makes all nodes slower
alike. Requests are as small as they can be (one record, acks=1, one partition): decisions cost most beside these.
"""  # noqa: E501

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from operator import truediv
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cpu_time import cpu_ns
from start_time import free_port

from penstock.batch import Record, build_batch
from penstock.client.security_settings import SecuritySettings
from penstock.client.wire import ClientSettings, Connection
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import produce

RULES = (1, 1_000)
TURNS = 60
REQUESTS = 3_000
IN_FLIGHT = 20
TOPIC = "orders"
USER, PASSWORD = "loader", "loader-password"
TIMEOUT_S = 60
PRODUCE_VERSION = 9


class LoadedNode(NamedTuple):
    connection: Connection
    pid: int


def cost(folder: Path, turns: int = TURNS, requests: int = REQUESTS) -> str:
    """A sentence with the figures."""
    used = _measure(folder, turns, requests)
    told = ", ".join(
        f"{100 * (median(map(truediv, used[count], used[None])) - 1):+.1f} % with {count:,} "
        f"rule{'s' if count > 1 else ''} of its user"
        for count in RULES
    )
    return (
        f"A Produce request of one record takes {median(used[None]):.0f} us of the broker's CPU without an authorizer; "
        f"{told} (medians of {turns} turns)."
    )


def _measure(folder: Path, turns: int, requests: int) -> dict[int | None, list[float]]:
    """Microseconds per request in each turn, by the number of rules."""
    kinds = (None, *RULES)
    used: dict[int | None, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        nodes = {kind: stack.enter_context(_node(folder / f"rules-{kind}", kind)) for kind in kinds}
        for node in nodes.values():
            _cpu_us_per_request(node, requests)  # the first turn is for code that is loaded on demand
        for turn in range(turns):
            first = turn % len(kinds)  # each node is the first, second and third equally often
            for kind in kinds[first:] + kinds[:first]:
                used[kind].append(_cpu_us_per_request(nodes[kind], requests))
    return used


def _cpu_us_per_request(node: LoadedNode, requests: int) -> float:
    before = cpu_ns(node.pid)
    for number in range(requests + IN_FLIGHT):
        if number < requests:
            node.connection.send(ApiKey.PRODUCE, _request(), version=PRODUCE_VERSION)
        if number >= IN_FLIGHT:
            _check(node.connection.receive())
    return (cpu_ns(node.pid) - before) / requests / 1000


def _request() -> produce.ProduceRequest:
    batch = build_batch([Record(0, 1, None, b"x" * 100, ())])
    data = produce.PartitionProduceData(index=0, records=batch)
    return produce.ProduceRequest(
        acks=1, timeout_ms=10_000, topic_data=[produce.TopicProduceData(name=TOPIC, partition_data=[data])]
    )


def _check(answer: object) -> None:
    assert isinstance(answer, produce.ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0


@contextmanager
def _node(folder: Path, rules: int | None) -> Iterator[LoadedNode]:
    """`rules` of the user; None: a node that asks nobody who it is."""
    folder.mkdir(parents=True)
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli", "serve", "--memory", "--kafka", f"127.0.0.1:{port}"]
    command += [
        "--http",
        "none",
        "--log-level",
        "warning",
        *(["--require-login"] if rules is not None else []),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        servers = f"127.0.0.1:{port}"
        password = _password_until_ready(process)
        _prepare(servers, password, rules)
        login = SecuritySettings(mechanism="SCRAM-SHA-256", user=USER, password=PASSWORD)
        security = login if rules is not None else SecuritySettings()
        settings = ClientSettings(bootstrap_servers=servers, security=security)
        connection = Connection("127.0.0.1", port, settings)
        yield LoadedNode(connection, process.pid)
        connection.close()
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def _password_until_ready(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    password = ""
    for line in process.stdout:
        if line.startswith("admin password:"):
            password = line.partition(":")[2].strip()
        if line.startswith("ready"):
            break
    return password


def _prepare(servers: str, password: str, rules: int | None) -> None:
    """The topic, the user, and its rules: one for the topic, and the others for topics that do not exist."""
    login = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "admin",
        "sasl.password": password,
    }
    admin = AdminClient({"bootstrap.servers": servers, **(login if rules is not None else {})})
    futures = list(admin.create_topics([NewTopic(TOPIC, 1)]).values())
    if rules is not None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        futures += admin.alter_user_scram_credentials([change]).values()
        names = [TOPIC, *(f"{TOPIC}-{number}" for number in range(1, rules))]
        futures += admin.create_acls([_rule(name) for name in names]).values()
    for one in futures:
        one.result(TIMEOUT_S)


def _rule(name: str) -> AclBinding:
    allow = AclPermissionType.ALLOW
    literal = ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, name, literal, f"User:{USER}", "*", AclOperation.WRITE, allow)
