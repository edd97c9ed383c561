"""A limit on everything that a peer controls: its name, its default, and the reason for both.

A limit is a promise to every other client: no single one can take the node's memory, files or time.
All of them can be set in the config file (`[limits]`), in the environment (`PENSTOCK_LIMITS_MAX_CONNECTIONS`)
and in `Limits(...)`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields
from penstock.errors import ConfigError

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most of each thing, and why. docs/configuration.md quotes the sentence below each limit."""

    max_request_bytes: Annotated[int, Meta(ge=KIBIBYTE, le=2**31 - 1)] = 100 * MEBIBYTE
    """One frame; Kafka's socket.request.max.bytes is the same."""
    max_connections: Annotated[int, Meta(ge=1)] = 20_000
    """Open client connections; an idle one costs under 20 KB, so this is 400 MB."""
    max_in_flight_requests_per_connection: Annotated[int, Meta(ge=1)] = 128
    """Requests read before the first one is answered; clients themselves stop at 5 to 100."""
    fetch_max_bytes: Annotated[int, Meta(ge=KIBIBYTE)] = 55 * MEBIBYTE
    """One Fetch response, whatever the client asks for; Kafka's default is 55 MiB."""
    max_response_rows: Annotated[int, Meta(ge=1)] = 300_000
    """Partitions, configs or members in one Kafka response; all of max_topics and max_partitions fit."""
    max_client_memory_bytes: Annotated[int, Meta(ge=MEBIBYTE)] = 1024 * MEBIBYTE
    """Requests and responses of all Kafka clients; near it responses get smaller, past it they wait."""
    idle_timeout_ms: Annotated[int, Meta(ge=1)] = 600_000
    """A connection without a request is closed; Kafka's connections.max.idle.ms."""
    max_tls_handshakes: Annotated[int, Meta(ge=1)] = 1_024
    """TLS handshakes under way on one port; past it the oldest is closed."""
    tls_handshake_timeout_ms: Annotated[int, Meta(ge=1)] = 10_000
    """How long a TLS handshake may take, from the connection on; most need 50 ms."""
    slow_drain_timeout_ms: Annotated[int, Meta(ge=1)] = 60_000
    """A client or WebSocket that has not read its responses for this long is disconnected."""
    max_client_id_bytes: Annotated[int, Meta(ge=1, le=32_767)] = 1024
    """Client ids are stored with group members and shown in metrics."""
    max_topics: Annotated[int, Meta(ge=1)] = 50_000
    """Topics are kept in memory on every node and listed whole in Metadata."""
    max_partitions_per_topic: Annotated[int, Meta(ge=1)] = 10_000
    """One CreateTopics must not stop the node while it makes partitions."""
    max_partitions: Annotated[int, Meta(ge=1)] = 200_000
    """All partitions of the cluster; each costs memory on the nodes that hold a replica."""
    max_dedup_ids_per_partition: Annotated[int, Meta(ge=1)] = 1_000_000
    """Message ids remembered where dedup.window.ms is set; 200 bytes each, so this is 200 MB."""
    max_groups: Annotated[int, Meta(ge=1)] = 100_000
    """Consumer groups per coordinator; each is kept in memory until its offsets expire."""
    max_group_members: Annotated[int, Meta(ge=1)] = 10_000
    """Members of one group; every rebalance sends each one's metadata to the leader."""
    max_group_offsets: Annotated[int, Meta(ge=1)] = 200_000
    """Partitions that one group may have committed offsets for. Offsets of open transactions count besides."""
    max_group_id_bytes: Annotated[int, Meta(ge=1, le=32_767)] = 4096
    """Group and member ids are part of every key in the offsets topic."""
    max_group_protocols: Annotated[int, Meta(ge=1)] = 100
    """Assignors that one member may offer; clients offer one to four."""
    max_member_metadata_bytes: Annotated[int, Meta(ge=1)] = MEBIBYTE
    """The metadata of one member, all its protocols together."""
    max_group_metadata_bytes: Annotated[int, Meta(ge=1)] = 32 * MEBIBYTE
    """The same for all members of a group: the leader gets it in one response."""
    max_group_assignment_bytes: Annotated[int, Meta(ge=1)] = 32 * MEBIBYTE
    """One generation's assignments: they are one record in the offsets topic."""
    max_group_patterns: Annotated[int, Meta(ge=1)] = 20
    """Different regular expressions that the members of one consumer group subscribe to; each is matched with every
    new topic."""
    max_pattern_instructions: Annotated[int, Meta(ge=1)] = 10_000
    """The size of all such expressions, when compiled, of the groups on one partition of the offsets topic: a new topic
    is matched with all of them in one turn of the event loop. `orders-.*` has 19."""
    max_pattern_bytes: Annotated[int, Meta(ge=1, le=32_767)] = 1_000
    """The length of such an expression: it is part of a key in the offsets topic, and compiled when a member joins."""
    max_subscribed_topics: Annotated[int, Meta(ge=1)] = 10_000
    """Topics that one member of a share group subscribes to; each is looked up when topics change."""
    max_transactional_ids: Annotated[int, Meta(ge=1)] = 100_000
    """Transactional ids per coordinator; each costs under a kilobyte until it expires."""
    max_transactional_id_bytes: Annotated[int, Meta(ge=1, le=32_767)] = 4096
    """Transactional ids are the keys of the transaction topic."""
    max_transaction_partitions: Annotated[int, Meta(ge=1)] = 10_000
    """Partitions of one transaction; every change of the transaction stores them all in one record."""
    max_attempts: Annotated[int, Meta(ge=1, le=998)] = 900
    """Producers that a transactional id lends to tasks (docs/spark.md): the decision about all is one write, which has
    a record for each, and one or two for the id itself."""
    max_attempt_partitions: Annotated[int, Meta(ge=1)] = 100_000
    """Partitions of the transactions of these producers, added up: the same write stores them all, half a megabyte."""
    max_queues: Annotated[int, Meta(ge=1)] = 50_000
    """Queues on partitions that one node leads; each costs 10 KB, and more while it has work."""
    max_share_sessions: Annotated[int, Meta(ge=1)] = 10_000
    """Sessions of share consumers on one node; Kafka's group.share.max.share.sessions."""
    max_partitions_per_session: Annotated[int, Meta(ge=1)] = 10_000
    """Partitions in the session of one share consumer, or in one fetch session: a small request reads them all."""
    max_fetch_sessions: Annotated[int, Meta(ge=0)] = 1_000
    """Fetch sessions of consumers on one node; Kafka's max.incremental.fetch.session.cache.slots. Others name all
    of their partitions in every request."""
    max_fetch_session_partitions: Annotated[int, Meta(ge=0)] = 200_000
    """Partitions of all fetch sessions on one node; half a kilobyte each, so this is 100 MB."""
    max_group_configs: Annotated[int, Meta(ge=1)] = 10_000
    """Groups with configs of their own: every node and every metadata snapshot holds them all."""
    max_users: Annotated[int, Meta(ge=1)] = 10_000
    """Users with a password: every node and every metadata snapshot holds them all."""
    max_acls: Annotated[int, Meta(ge=1)] = 50_000
    """Access rules, also those that grants of roles make; each costs half a kilobyte on every node."""
    max_tokens: Annotated[int, Meta(ge=1)] = 20_000
    """API tokens of all users: every node and every metadata snapshot holds them all."""
    max_tokens_per_user: Annotated[int, Meta(ge=1)] = 100
    """Users make their own tokens: one that makes a token per run must not use up max_tokens."""
    max_roles: Annotated[int, Meta(ge=1)] = 200
    """Roles of your own, each with up to 1,000 permissions: every metadata snapshot holds them all."""
    max_role_grants: Annotated[int, Meta(ge=1)] = 10_000
    """Grants of roles to principals; the rules that they make count for max_acls."""
    max_quotas: Annotated[int, Meta(ge=1)] = 10_000
    """Users, client ids and addresses with quotas: every node and every metadata snapshot holds them all."""
    max_login_bytes: Annotated[int, Meta(ge=KIBIBYTE)] = 64 * KIBIBYTE
    """One request before its client has logged in; tokens of identity providers have a few KB."""
    login_timeout_ms: Annotated[int, Meta(ge=1)] = 30_000
    """A client that has to log in must have done so by then; it takes a few round trips."""
    max_cliques: Annotated[int, Meta(ge=1)] = 1_000
    """Cliques per coordinator, of which a cluster has 8; each costs 150 KB while it has members."""
    max_clique_members: Annotated[int, Meta(ge=1, le=512)] = 512
    """Workers of one clique; with more, a worker would own fewer than 8 of the 4,096 slots."""
    max_clique_streams: Annotated[int, Meta(ge=1, le=64)] = 64
    """Streams that one worker of a clique handles; they are stored with every change of the clique."""
    max_offset_metadata_bytes: Annotated[int, Meta(ge=0, le=32_767)] = 4096
    """A committed offset's free text; Kafka's offset.metadata.max.bytes."""

    max_peer_frame_bytes: Annotated[int, Meta(ge=MEBIBYTE, le=2**31 - 1)] = 64 * MEBIBYTE
    """One message between nodes; must hold the largest batch that a topic may take."""
    max_peer_queue_bytes: Annotated[int, Meta(ge=MEBIBYTE)] = 128 * MEBIBYTE
    """Bytes that wait to be sent to one other node; past it messages are dropped and sent later."""
    max_peers: Annotated[int, Meta(ge=1)] = 1_000
    """Nodes connected at once; there is one connection for each."""
    max_peer_handshakes: Annotated[int, Meta(ge=1)] = 64
    """Connections on the inter-node port without a handshake yet; past it the oldest is closed."""
    peer_handshake_timeout_ms: Annotated[int, Meta(ge=1)] = 5_000
    """How long the handshake on the inter-node port may take; nodes need a few ms."""
    max_peer_calls: Annotated[int, Meta(ge=1)] = 1_024
    """Calls from one node to another that have no answer yet: up to half for clients, of these half long polls; further
    long polls ask once a second."""

    max_http_connections: Annotated[int, Meta(ge=1)] = 4_096
    """Open connections on the HTTP port; at most an eighth of the files that the process may open."""
    http_idle_timeout_ms: Annotated[int, Meta(ge=1)] = 10_000
    """An HTTP connection without a request is closed; behind a proxy, set it longer than there."""
    max_http_body_bytes: Annotated[int, Meta(ge=KIBIBYTE, le=1024 * MEBIBYTE)] = 8 * MEBIBYTE
    """One body on the HTTP port: a few of the largest batches that a topic takes by default."""
    max_http_body_chunks: Annotated[int, Meta(ge=1)] = 8_192
    """Chunks of one body with Transfer-Encoding chunked: each takes 10 µs, however small it is."""
    http_body_timeout_ms: Annotated[int, Meta(ge=1)] = 30_000
    """How long a body may take to arrive: 8 MiB in that time are 2 Mbit a second."""
    max_http_memory_bytes: Annotated[int, Meta(ge=MEBIBYTE)] = 256 * MEBIBYTE
    """Bodies and responses of all HTTP clients together; past it requests are refused with 503."""

    max_credit: Annotated[int, Meta(ge=1, le=100_000)] = 100_000
    """Messages that a push subscriber or worker may hold, whatever it asks for; each costs memory."""
    max_partitions_per_subscription: Annotated[int, Meta(ge=1)] = 2_000
    """Partitions of one push subscriber: each costs a long poll and a few kilobytes."""

    def validate(self) -> None:
        """Raises ConfigError for a limit outside its range, or for two that contradict each other."""
        check_fields(self, "limits.")
        if self.max_peer_queue_bytes < self.max_peer_frame_bytes:
            expected = f"at least limits.max_peer_frame_bytes ({self.max_peer_frame_bytes})"
            raise ConfigError("limits.max_peer_queue_bytes", self.max_peer_queue_bytes, expected)
