"""Finds the nodes' HTTP addresses: each node has its own in its broker config `penstock.http.url`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.client.errors import ClientError, Denied
from penstock.client.forks import kept_in_child
from penstock.client.kafka_errors import LIBRDKAFKA_LOG, client_error

CONFIG: Final = "penstock.http.url"
FIND_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 0.3
"""How long to wait for the other nodes after the first has answered."""


def make_admin(servers: str, settings: Mapping[str, Any]) -> AdminClient:
    """`settings` without those of producers: librdkafka would complain about them on stderr."""
    ours: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": "penstock",
        "logger": LIBRDKAFKA_LOG,
        "log_level": 0,
    }
    try:
        return kept_in_child(AdminClient({**settings, **ours}))
    except KafkaException as problem:
        raise ClientError(f"librdkafka does not take these settings: {problem.args[0].str()}") from None


def http_urls(admin: AdminClient) -> list[str]:
    """The addresses of all nodes that answer and have an HTTP port."""
    asked = "looking for the brokers' HTTP ports"
    try:
        brokers = admin.list_topics(timeout=FIND_SECONDS).brokers
    except KafkaException as problem:
        raise client_error(problem.args[0], asked) from None
    # One request each: only the node itself knows its configs.
    futures = [
        future
        for number in sorted(brokers)
        for future in admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(number))], request_timeout=FIND_SECONDS
        ).values()
    ]
    # When one node has answered, do not wait for nodes that are away: one node knows the others.
    wait(futures, return_when=FIRST_COMPLETED)
    done = wait(futures, GRACE_SECONDS).done
    urls, error = _answers([one for one in futures if one in done], asked)
    if not urls:
        urls, error = _answers(futures, asked)
    if not urls:
        raise error or Denied("no_http_port", _ADVICE)
    return urls


def _answers(futures: "Sequence[Future[Any]]", asked: str) -> tuple[list[str], ClientError | None]:
    """The addresses of the nodes that have one, and the last error of those that did not answer."""
    urls = []
    error: ClientError | None = None
    for future in futures:
        try:
            config = future.result().get(CONFIG)
        except KafkaException as problem:
            error = client_error(problem.args[0], asked)
            continue
        if config is not None and config.value:
            urls.append(config.value)
    return urls, error


_ADVICE: Final = (
    "no node announces an HTTP port, which queues and subscriptions need: start the nodes with --http, or use "
    'Client(..., http="http://host:port")'
)
