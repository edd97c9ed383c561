"""All operations of the API, the document that describes them, and the index."""

from functools import cached_property
from typing import Any

import msgspec
from starlette.routing import Route

from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.version import VERSION
from penstock.web.api.dead_letters import DeadLetters
from penstock.web.api.groups import Groups
from penstock.web.api.openapi import describe
from penstock.web.api.publishing import Publishing
from penstock.web.api.queue_jobs import QueueJobs
from penstock.web.api.queue_settings import QueueSettings
from penstock.web.api.queues import Queues
from penstock.web.api.reading import Reading
from penstock.web.api.routing import Answer, Call, NoParams, Operation, routes
from penstock.web.api.subscriptions import SubscriptionsApi
from penstock.web.api.topics import Topics

DOCUMENT_PATH = "/v1/openapi.json"
ELSEWHERE = {
    "/v1/cluster": "the whole cluster: nodes, partitions, lags",
    "/v1/cluster/nodes": "nodes and their addresses",
    "/v1/cluster/partitions": "who leads and holds what, for clients that choose their node",
    "/v1/push": "a WebSocket: messages as they come, see docs/push.md",
    "/v1/work": "a WebSocket: jobs of a queue, see docs/queues.md",
}
"""Served by `web.cluster`, `web.push` and `web.work`."""


class Path(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    summary: str


class Index(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    openapi: str
    paths: list[Path]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


def operations(client: InnerClient) -> list[Operation]:
    """Every family's, in the order of the document."""
    families = (
        Topics(client),
        Publishing(client),
        Reading(client),
        Groups(client),
        Queues(client),
        QueueSettings(client),
        QueueJobs(client),
        DeadLetters(client),
        SubscriptionsApi(client),
    )
    return [operation for family in families for operation in family.operations()]


class Contents:
    """What the API says of itself."""

    def __init__(self, described: list[Operation]) -> None:
        self._operations = [*self.operations(), *described]

    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(describe(self._operations))

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1",
                name="index",
                summary="What there is",
                handler=self.index,
                answer=Index,
                tag="index",
            ),
            Operation(
                method="GET",
                path=DOCUMENT_PATH,
                name="openapi",
                summary="This document",
                handler=self.document,
                answer=Document,
                tag="index",
            ),
        ]

    async def index(self, call: Call[NoParams, None]) -> Index:
        paths = [Path(method=one.method, path=one.path, summary=one.summary) for one in self._operations] + [
            Path(method="GET", path=path, summary=summary) for path, summary in ELSEWHERE.items()
        ]
        return Index(name="penstock", version=VERSION, openapi=DOCUMENT_PATH, paths=paths)

    async def document(self, call: Call[NoParams, None]) -> Answer:
        return Answer(200, self._document)


def api_routes(node: Node) -> list[Route]:
    """The routes of one node's API."""
    described = operations(InnerClient(node))
    contents = Contents(described)
    return routes([*contents.operations(), *described], node)
