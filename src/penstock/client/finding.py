"""Where the nodes' HTTP ports are: each node says so in its broker config `penstock.http.url`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.client.errors import ClientError, Denied
from penstock.client.kafka_trouble import SILENCE, translate

CONFIG: Final = "penstock.http.url"
FIND_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 0.3
"""For the answers of the others after the first one."""


def make_admin(servers: str, settings: Mapping[str, Any]) -> AdminClient:
    """Producer settings are not for an admin client, and librdkafka would say so on stderr."""
    ours: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": "penstock",
        "logger": SILENCE,
        "log_level": 0,
    }
    try:
        return AdminClient({**settings, **ours})
    except KafkaException as problem:
        raise ClientError(f"librdkafka does not take these settings: {problem.args[0].str()}") from None


def http_urls(admin: AdminClient) -> list[str]:
    """Of all nodes that answer. Nodes without an HTTP port are left out."""
    asked = "looking for the brokers' HTTP ports"
    try:
        brokers = admin.list_topics(timeout=FIND_SECONDS).brokers
    except KafkaException as problem:
        raise translate(problem.args[0], asked) from None
    # One request each: only the node itself knows its configs.
    futures = [
        future
        for number in sorted(brokers)
        for future in admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(number))], request_timeout=FIND_SECONDS
        ).values()
    ]
    # Who is away is not waited for when somebody has answered: one node knows the others.
    wait(futures, return_when=FIRST_COMPLETED)
    done = wait(futures, GRACE_SECONDS).done
    urls, trouble = _answers([one for one in futures if one in done], asked)
    if not urls:
        urls, trouble = _answers(futures, asked)
    if not urls:
        raise trouble or Denied("no_http_port", _ADVICE)
    return urls


def _answers(futures: "Sequence[Future[Any]]", asked: str) -> tuple[list[str], ClientError | None]:
    """Addresses of those who have one, and what was wrong with the last of those who did not answer."""
    urls = []
    trouble: ClientError | None = None
    for future in futures:
        try:
            config = future.result().get(CONFIG)
        except KafkaException as problem:
            trouble = translate(problem.args[0], asked)
            continue
        if config is not None and config.value:
            urls.append(config.value)
    return urls, trouble


_ADVICE: Final = (
    "no node says where its HTTP port is, which queues and subscriptions need: start the nodes with --http, or say "
    'Client(..., http="http://host:port")'
)
