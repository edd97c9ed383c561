"""Everything under /v1, in one table.

A row says: method and path; the handler; the permission that its caller needs; a summary; the statuses of refusals
beside those that all operations have (400, 401, 403, 421, 503, and 408, 413 and 415 for those with a body).
`api.routing` serves the rows, checks the permission, and turns every failure into the same JSON; `api.openapi`
describes them. To add an operation, write a handler and add a row.

Outside the table: /health and /ready (`app`), which need no permission; /metrics (`app`), which needs DESCRIBE on the
cluster unless `metrics_without_login` is set; and the WebSockets, whose first frame says what they are about,
so that they check permissions themselves.
"""

from functools import cached_property
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route, WebSocketRoute

from penstock.node import Node
from penstock.security.quotas import QuotaKind
from penstock.types import Operation, ResourceType
from penstock.version import VERSION
from penstock.web.api.acls import Acls
from penstock.web.api.cliques import Cliques
from penstock.web.api.cluster import Cluster
from penstock.web.api.dead_letters import DeadLetters
from penstock.web.api.groups import Groups
from penstock.web.api.openapi import describe
from penstock.web.api.overview import Overview
from penstock.web.api.permissions import Permissions
from penstock.web.api.publishing import Publishing
from penstock.web.api.queue_diagnosis import QueueDiagnosis
from penstock.web.api.queue_jobs import QueueJobs
from penstock.web.api.queue_reset import QueueReset
from penstock.web.api.queue_settings import QueueSettings
from penstock.web.api.queues import Queues
from penstock.web.api.quotas import Quotas
from penstock.web.api.reading import Reading
from penstock.web.api.roles import Roles
from penstock.web.api.routing import Answer, Call, HttpOperation, NoParams
from penstock.web.api.subscriptions import SubscriptionsApi
from penstock.web.api.topic_usage import TopicUsage
from penstock.web.api.topics import Topics
from penstock.web.api.transaction_admin import TransactionAdminApi
from penstock.web.api.transactions import TransactionsApi
from penstock.web.api.users import Users
from penstock.web.browse import BrowseEndpoint
from penstock.web.push import PushEndpoint
from penstock.web.work import WorkEndpoint

DOCUMENT_PATH = "/v1/openapi.json"
SOCKETS = {
    "/v1/push": "a WebSocket: messages as they come, see docs/push.md",
    "/v1/browse": "a WebSocket: messages of a topic, filtered, see docs/http-api.md",
    "/v1/work": "a WebSocket: jobs of a queue, see docs/queues.md",
}

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, NO_PERMISSION = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.ANY,
)
TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER, NOTHING = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
    ResourceType.ANY,
)
PRODUCED, FETCHED = QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE


def operations(node: Node) -> list[HttpOperation]:
    """The table, with handlers for one node."""
    index, cluster, overview = Index(), Cluster(node), Overview(node)
    # fmt: off
    rows = [
        HttpOperation("GET", "/v1", index.index, NO_PERMISSION, NOTHING, "What there is"),
        HttpOperation("GET", DOCUMENT_PATH, index.openapi, NO_PERMISSION, NOTHING, "This document"),
        HttpOperation("GET", "/v1/me", overview.show_caller, NO_PERMISSION, NOTHING, "The caller, as it has logged in"),
        HttpOperation("GET", "/v1/me/operations", Permissions(node).show_caller_operations, NO_PERMISSION, NOTHING,
                      "What the caller may do with a resource, or with all of a type"),
        *_topics(node), *_groups(node), *_queues(node), *_subscriptions(node), *_cliques(node),
        *_transactions(node),
        *_users(node), *_access_rules(node), *_quotas(node),
        HttpOperation("GET", "/v1/cluster", cluster.describe_cluster, DESCRIBE, CLUSTER,
                      "The whole cluster: nodes, partitions, lags"),
        HttpOperation("GET", "/v1/cluster/summary", overview.summarize_cluster, DESCRIBE, CLUSTER,
                      "The cluster at a glance: nodes, problems, and how many topics and partitions there are"),
        HttpOperation("GET", "/v1/cluster/samples", overview.list_samples, DESCRIBE, CLUSTER,
                      "Throughput, lag and queued messages of the last quarter of an hour, every five seconds"),
        HttpOperation("GET", "/v1/cluster/nodes", cluster.list_nodes, DESCRIBE, CLUSTER,
                      "Nodes, their addresses, and the partitions that each holds and leads"),
        HttpOperation("GET", "/v1/cluster/partitions", cluster.list_partitions, DESCRIBE, CLUSTER,
                      "Who leads and holds each partition, and how far replicas are behind", (404,)),
        HttpOperation("POST", "/v1/cluster/rebalance", cluster.rebalance, ALTER, CLUSTER,
                      "Begin the moves that may begin now; repeat it until none is left", (409,)),
        HttpOperation("POST", "/v1/cluster/nodes/{node_id}/decommission", cluster.decommission_node, ALTER, CLUSTER,
                      "Move everything away from a node, and then remove it from the cluster",
                      (404, 409), changes="node"),
        HttpOperation("DELETE", "/v1/cluster/nodes/{node_id}/decommission", cluster.keep_node, ALTER, CLUSTER,
                      "Keep a node that was to leave", (404, 409), changes="node"),
        HttpOperation("POST", "/v1/cluster/recover", cluster.recover_partitions, ALTER, CLUSTER,
                      "Let this node's replicas continue alone where all others are lost for good; records may be lost",
                      (409,), while_waiting=True),
    ]
    # fmt: on
    index.operations = rows
    return rows


# fmt: off
def _topics(node: Node) -> list[HttpOperation]:
    topics, usage, one = Topics(node), TopicUsage(node), "/v1/topics/{topic}"
    return [
        HttpOperation("GET", "/v1/topics", topics.list_topics, DESCRIBE, TOPIC,
                      "All topics; the broker's own only with internal=true"),
        HttpOperation("POST", "/v1/topics", topics.create_topic, CREATE, TOPIC, "Create a topic", (409,), 201),
        HttpOperation("GET", one, topics.describe_topic, DESCRIBE, TOPIC,
                      "Configs, and who leads and holds each partition", (404,)),
        HttpOperation("GET", one + "/sizes", usage.describe_topic_sizes, DESCRIBE, TOPIC,
                      "The bytes that each replica takes", (404,)),
        HttpOperation("GET", one + "/groups", usage.list_topic_groups, DESCRIBE, TOPIC,
                      "Consumer groups that have committed offsets of a topic, and their lag", (404,)),
        HttpOperation("GET", "/v1/topic-configs", usage.list_topic_configs, NO_PERMISSION, NOTHING,
                      "All configs of topics: what each does, its default, and the values that it takes"),
        HttpOperation("DELETE", one, topics.delete_topic, DELETE, TOPIC,
                      "Delete a topic and all of its records", (404, 409), 204),
        HttpOperation("PATCH", one + "/configs", topics.alter_topic_configs, ALTER_CONFIGS, TOPIC,
                      "Set and unset configs of a topic; the others stay", (404, 409)),
        HttpOperation("POST", one + "/partitions", topics.add_partitions, ALTER, TOPIC,
                      "Give a topic more partitions; keys may go to other partitions from then on", (404, 409)),
        HttpOperation("POST", one + "/records", Publishing(node).publish, WRITE, TOPIC,
                      "Publish records; answered when a majority of the replicas has them on disk",
                      (404,), other_statuses=(207,), takes_binary=True, counted=PRODUCED),
        HttpOperation("GET", one + "/partitions/{partition}/records", Reading(node).read_records, READ, TOPIC,
                      "Read a partition from an offset or a time on, waiting for records if asked to",
                      (404, 413, 416, 422), counted=FETCHED),
    ]


def _groups(node: Node) -> list[HttpOperation]:
    groups, overview, one = Groups(node), Overview(node), "/v1/groups/{group}"
    return [
        HttpOperation("GET", "/v1/groups", groups.list_groups, DESCRIBE, GROUP,
                      "All groups, whichever node coordinates them"),
        HttpOperation("GET", one, groups.describe_group, DESCRIBE, GROUP,
                      "Members, committed offsets and lag of a group", (404,)),
        HttpOperation("GET", one + "/samples", overview.list_group_samples, DESCRIBE, GROUP,
                      "The lag of a group in the last quarter of an hour, every five seconds"),
        HttpOperation("DELETE", one, groups.delete_group, DELETE, GROUP,
                      "Delete a group that has no members, with its offsets", (404, 409), 204),
        HttpOperation("POST", one + "/offsets", groups.reset_offsets, READ, GROUP,
                      "Set the offsets of a group without members; the group need not exist yet", (404, 409)),
    ]


def _queues(node: Node) -> list[HttpOperation]:
    queues, jobs, letters, one = Queues(node), QueueJobs(node), DeadLetters(node), "/v1/queues/{queue}"
    return [
        HttpOperation("GET", "/v1/queues", queues.list_queues, DESCRIBE, GROUP, "All queues"),
        HttpOperation("POST", "/v1/queues", queues.create_queue, ALTER_CONFIGS, GROUP,
                      "Create a queue on a topic, and the topic if there is none", (404, 409), 201),
        HttpOperation("GET", one, queues.describe_queue, DESCRIBE, GROUP,
                      "Settings of a queue, and its messages by state on each partition", (404,)),
        HttpOperation("GET", one + "/diagnosis", QueueDiagnosis(node).diagnose_queue, DESCRIBE, GROUP,
                      "Whether a queue moves, and why not, in words", (404,)),
        HttpOperation("DELETE", one, queues.delete_queue, DELETE, GROUP,
                      "Delete a queue that has no members, and its progress; messages stay", (404, 409), 204),
        HttpOperation("PATCH", one, QueueSettings(node).alter_queue, ALTER_CONFIGS, GROUP,
                      "Change settings of a queue; the others stay", (404, 409)),
        HttpOperation("GET", one + "/peek", queues.peek_queue, DESCRIBE, GROUP,
                      "Look at messages that are not done, without receiving them", (404, 409), counted=FETCHED),
        HttpOperation("GET", one + "/scheduled", queues.list_scheduled, DESCRIBE, GROUP,
                      "Messages that are not due: how many on each partition, and the next of them", (404,)),
        HttpOperation("POST", one + "/reset", QueueReset(node).reset_queue, READ, GROUP,
                      "Move a queue to another place of its topics; messages after it are delivered, also again",
                      (404, 409)),
        HttpOperation("POST", one + "/purge", queues.purge_queue, READ, GROUP,
                      "Mark all messages of a queue as done; other queues and groups keep them", (404, 409)),
        HttpOperation("POST", one + "/receive", jobs.receive_jobs, READ, GROUP,
                      "Receive jobs from a queue; they come back unless they are settled in time", (404, 409),
                      counted=FETCHED),
        HttpOperation("POST", one + "/settle", jobs.settle_jobs, READ, GROUP,
                      "Settle jobs: accept, retry or reject them, or renew their leases",
                      other_statuses=(207,), routine=True),
        HttpOperation("GET", one + "/dead-letters", letters.list_dead_letters, DESCRIBE, GROUP,
                      "Dead letters of a queue that were not sent back", (404, 409), counted=FETCHED),
        HttpOperation("GET", one + "/dead-letters/{topic}/{partition}/{offset}", letters.show_dead_letter,
                      DESCRIBE, GROUP, "One dead letter", (404, 409), counted=FETCHED),
        HttpOperation("POST", one + "/dead-letters/send-back", letters.send_back_dead_letters, READ, GROUP,
                      "Publish dead letters to the topics that they came from, to be tried again",
                      (404, 409), other_statuses=(207,)),
    ]


def _cliques(node: Node) -> list[HttpOperation]:
    cliques = Cliques(node)
    return [
        HttpOperation("GET", "/v1/cliques", cliques.list_cliques, DESCRIBE, GROUP, "All cliques"),
        HttpOperation("GET", "/v1/cliques/{clique}", cliques.describe_clique, DESCRIBE, GROUP,
                      "Workers of a clique, the slots and messages of each, handovers, and its streams", (404,)),
        HttpOperation("PUT", "/v1/cliques/{clique}/members/{worker}", cliques.send_heartbeat, READ, GROUP,
                      "A worker joins its clique, stays in it, hands slots over, or leaves", (409,), routine=True),
    ]


def _transactions(node: Node) -> list[HttpOperation]:
    transactions, one = TransactionsApi(node), "/v1/transactions/{transactional_id}"
    admin = TransactionAdminApi(node)
    return [
        HttpOperation("GET", "/v1/transactions", admin.list_transactions, DESCRIBE, TRANSACTIONAL_ID,
                      "Transactions that are open, or all transactional ids, whichever node coordinates them"),
        HttpOperation("GET", one, admin.describe_transaction, DESCRIBE, TRANSACTIONAL_ID,
                      "State, producer, partitions and age of a transaction", (404,)),
        HttpOperation("POST", one + "/abort", admin.abort_transaction, WRITE, TRANSACTIONAL_ID,
                      "Abort the open transaction of an id, and fence its producer", (404, 409)),
        HttpOperation("POST", one + "/attempts", transactions.lend_attempt, WRITE, TRANSACTIONAL_ID,
                      "A producer for one attempt of a task, which writes a part of a version of the output",
                      (409,), routine=True),
        HttpOperation("POST", one + "/renew", transactions.renew_attempts, WRITE, TRANSACTIONAL_ID,
                      "A sign of life: the attempts stay open", (409,), routine=True),
        HttpOperation("POST", one + "/commit", transactions.commit_version, WRITE, TRANSACTIONAL_ID,
                      "Commit a version: the attempts that are named, and abort all others", (409,), routine=True),
        HttpOperation("POST", one + "/rollback", transactions.rollback_version, WRITE, TRANSACTIONAL_ID,
                      "Abort all attempts of a version and of earlier ones", (409,), routine=True),
    ]


def _subscriptions(node: Node) -> list[HttpOperation]:
    subscriptions, one = SubscriptionsApi(node), "/v1/subscriptions/{subscription}"
    return [
        HttpOperation("GET", "/v1/subscriptions", subscriptions.list_subscriptions, DESCRIBE, GROUP,
                      "All subscriptions, whichever node coordinates them"),
        HttpOperation("GET", one, subscriptions.describe_subscription, DESCRIBE, GROUP,
                      "Positions of a subscription on each partition, unacked messages, and its lag", (404,)),
        HttpOperation("DELETE", one, subscriptions.delete_subscription, DELETE, GROUP,
                      "Delete a subscription; with force, also one that has a subscriber", (404, 409), 204),
    ]


def _users(node: Node) -> list[HttpOperation]:
    users, one = Users(node), "/v1/users/{user}"
    return [
        HttpOperation("GET", "/v1/users", users.list_users, DESCRIBE, CLUSTER, "All users, without their passwords"),
        HttpOperation("POST", "/v1/users", users.create_user, ALTER, CLUSTER,
                      "Create a user", (409,), 201, changes="user"),
        HttpOperation("DELETE", one, users.delete_user, ALTER, CLUSTER,
                      "Delete a user and its API tokens; access rules and grants that name it stay",
                      (404,), changes="user"),
        HttpOperation("PUT", one + "/password", users.set_password, ALTER, CLUSTER,
                      "Set another password; users may do this for themselves",
                      (404,), 204, by_user=True, changes="user"),
        HttpOperation("GET", one + "/tokens", users.list_tokens, DESCRIBE, CLUSTER,
                      "API tokens of a user, without their secrets", (404,), by_user=True),
        HttpOperation("POST", one + "/tokens", users.create_token, ALTER, CLUSTER,
                      "Make an API token; this answer alone shows it", (404, 409), 201, by_user=True, changes="user"),
        HttpOperation("DELETE", one + "/tokens/{token_id}", users.revoke_token, ALTER, CLUSTER,
                      "Revoke an API token, at once", (404,), 204, by_user=True, changes="user"),
    ]


def _access_rules(node: Node) -> list[HttpOperation]:
    acls, roles, permissions = Acls(node), Roles(node), Permissions(node)
    return [
        HttpOperation("GET", "/v1/acls", acls.list_acls, DESCRIBE, CLUSTER,
                      "Access rules, all or those that a filter selects", (409,)),
        HttpOperation("POST", "/v1/acls", acls.add_acls, ALTER, CLUSTER,
                      "Add access rules; those that exist stay as they are", (409,), 201),
        HttpOperation("DELETE", "/v1/acls", acls.remove_acls, ALTER, CLUSTER,
                      "Remove the access rules that a filter selects, and show them", (409,)),
        HttpOperation("GET", "/v1/acls/check", acls.check_access, DESCRIBE, CLUSTER,
                      "Whether a principal may do something, and which rule decides", (409,)),
        HttpOperation("GET", "/v1/acls/effective", permissions.list_effective_rules, DESCRIBE, CLUSTER,
                      "All rules that count for a principal, and the roles that they come from", (409,)),
        HttpOperation("GET", "/v1/roles", roles.list_roles, DESCRIBE, CLUSTER,
                      "Roles: those that are built in, and those of your own", (409,)),
        HttpOperation("PUT", "/v1/roles/{role}", roles.put_role, ALTER, CLUSTER,
                      "Create or replace a role; all who have it get its new permissions", (409,), changes="role"),
        HttpOperation("DELETE", "/v1/roles/{role}", roles.delete_role, ALTER, CLUSTER,
                      "Delete a role without grants", (404, 409), 204, changes="role"),
        HttpOperation("GET", "/v1/grants", roles.list_grants, DESCRIBE, CLUSTER, "Who has which role", (409,)),
        HttpOperation("POST", "/v1/grants", roles.grant_role, ALTER, CLUSTER,
                      "Give a role to a principal, for everything or for a pattern of names",
                      (404, 409), 201, changes="role"),
        HttpOperation("DELETE", "/v1/grants", roles.revoke_role, ALTER, CLUSTER,
                      "Take a role from a principal: exactly this grant", (404, 409), 204, changes="role"),
    ]


def _quotas(node: Node) -> list[HttpOperation]:
    quotas = Quotas(node)
    return [
        HttpOperation("GET", "/v1/quotas", quotas.list_quotas, DESCRIBE_CONFIGS, CLUSTER,
                      "Quotas, all or those of a user, a client id or an address"),
        HttpOperation("PATCH", "/v1/quotas", quotas.set_quotas, ALTER_CONFIGS, CLUSTER,
                      "Set and remove quotas of a user, a client id, both, or an address; the others stay", (409,)),
        HttpOperation("DELETE", "/v1/quotas", quotas.remove_quotas, ALTER_CONFIGS, CLUSTER,
                      "Remove all quotas of exactly this user, client id, both, or address", (404,)),
    ]
# fmt: on


class PathFacts(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    summary: str


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    openapi: str
    paths: list[PathFacts]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class Index:
    """Describes the table that it is part of."""

    operations: list[HttpOperation]

    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(describe(self.operations))

    async def index(self, call: Call[NoParams, None]) -> IndexFacts:
        rows = [(row.method, row.path, row.summary) for row in self.operations]
        rows += [("GET", path, summary) for path, summary in SOCKETS.items()]
        paths = [PathFacts(method=method, path=path, summary=summary) for method, path, summary in rows]
        return IndexFacts(name="penstock", version=VERSION, openapi=DOCUMENT_PATH, paths=paths)

    async def openapi(self, call: Call[NoParams, None]) -> Answer[Document]:
        return Answer(200, self._document)


def socket_routes(node: Node) -> list[BaseRoute]:
    """The WebSockets of one node under /v1."""
    found: list[BaseRoute] = []
    for endpoint in (PushEndpoint(node), WorkEndpoint(node), BrowseEndpoint(node)):
        found += [WebSocketRoute(endpoint.path, endpoint.serve), Route(endpoint.path, endpoint.explain)]
    return found
