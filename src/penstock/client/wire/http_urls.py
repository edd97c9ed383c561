"""The addresses of the brokers' HTTP ports, asked for over Kafka's protocol: for programs that have no librdkafka."""

from functools import partial
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.connection import expect
from penstock.client.wire.retry import retrying
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

CONFIG: Final = "penstock.http.url"
BROKER_RESOURCE: Final = 4


def find_http_urls(cluster: Cluster) -> list[str]:
    """Empty if no broker has such a port, as in other Kafka clusters. Raises ClientError if that is not certain."""
    return retrying(cluster.settings, partial(_find_once, cluster))


def _find_once(cluster: Cluster) -> list[str]:
    urls: list[str] = []
    problems: list[ClientError] = []
    for node_id in cluster.brokers_once():
        try:
            urls += _url_of(cluster, node_id)
        except ClientError as problem:
            problems.append(problem)
    if problems and not urls:
        raise problems[0]
    return urls


def _url_of(cluster: Cluster, node_id: int) -> list[str]:
    """Only the node itself knows its configs. Every client may see this one, so a refusal comes from another Kafka."""
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[CONFIG]
    )
    connection = cluster.connect_once(node_id)
    version = connection.version_of(ApiKey.DESCRIBE_CONFIGS)
    message = DescribeConfigsRequest(resources=[resource])
    answer = expect(
        connection.call(ApiKey.DESCRIBE_CONFIGS, message, version=version), DescribeConfigsResponse
    )
    return [
        row.value for result in answer.results for row in result.configs if row.name == CONFIG and row.value
    ]
