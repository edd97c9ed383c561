"""A limit on everything that a peer controls: its name, its default, and the reason for both.

A limit is a promise to every other client: no single one can take the node's memory, files or time.
All of them can be set in the config file (`[limits]`), in the environment (`PENSTOCK_LIMITS_MAX_CONNECTIONS`)
and in `Limits(...)`.
"""

from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

from penstock.config.fields import check_fields
from penstock.errors import ConfigError

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most of each thing. `reason(name)` says why a limit has its value."""

    max_request_bytes: Annotated[
        int,
        Meta(
            ge=KIBIBYTE, le=2**31 - 1, description="One frame; Kafka's socket.request.max.bytes is the same."
        ),
    ] = 100 * MEBIBYTE
    max_connections: Annotated[
        int,
        Meta(ge=1, description="Open client connections; an idle one costs under 20 KB, so this is 400 MB."),
    ] = 20_000
    max_in_flight_requests_per_connection: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests read before the first one is answered; clients themselves stop at 5 to 100.",
        ),
    ] = 128
    fetch_max_bytes: Annotated[
        int,
        Meta(
            ge=KIBIBYTE,
            description="One Fetch response, whatever the client asks for; Kafka's default is 55 MiB.",
        ),
    ] = 55 * MEBIBYTE
    max_client_memory_bytes: Annotated[
        int,
        Meta(
            ge=MEBIBYTE,
            description="Requests and responses of all clients together; past it those that hold most are closed.",
        ),
    ] = 1024 * MEBIBYTE
    idle_timeout_ms: Annotated[
        int,
        Meta(ge=1, description="A connection without a request is closed; Kafka's connections.max.idle.ms."),
    ] = 600_000
    slow_drain_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="A client or WebSocket that has not read its responses for this long is disconnected.",
        ),
    ] = 60_000
    max_client_id_bytes: Annotated[
        int,
        Meta(ge=1, le=32_767, description="Client ids are stored with group members and shown in metrics."),
    ] = 1024
    max_topics: Annotated[
        int, Meta(ge=1, description="Topics are kept in memory on every node and listed whole in Metadata.")
    ] = 50_000
    max_partitions_per_topic: Annotated[
        int, Meta(ge=1, description="One CreateTopics must not stop the node while it makes partitions.")
    ] = 10_000
    max_partitions: Annotated[
        int,
        Meta(
            ge=1,
            description="All partitions of the cluster; each costs memory and, once written, open files.",
        ),
    ] = 200_000
    max_dedup_ids_per_partition: Annotated[
        int,
        Meta(
            ge=1,
            description="Message ids remembered where dedup.window.ms is set; 200 bytes each, so this is 200 MB.",
        ),
    ] = 1_000_000
    max_groups: Annotated[
        int,
        Meta(
            ge=1,
            description="Consumer groups per coordinator; each is kept in memory until its offsets expire.",
        ),
    ] = 100_000
    max_group_members: Annotated[
        int,
        Meta(
            ge=1, description="Members of one group; every rebalance sends each one's metadata to the leader."
        ),
    ] = 10_000
    max_group_offsets: Annotated[
        int, Meta(ge=1, description="Partitions that one group may have committed offsets for.")
    ] = 200_000
    max_group_id_bytes: Annotated[
        int,
        Meta(ge=1, le=32_767, description="Group and member ids are part of every key in the offsets topic."),
    ] = 4096
    max_group_protocols: Annotated[
        int, Meta(ge=1, description="Assignors that one member may offer; clients offer one to four.")
    ] = 100
    max_member_metadata_bytes: Annotated[
        int, Meta(ge=1, description="The metadata of one member, all its protocols together.")
    ] = MEBIBYTE
    max_group_metadata_bytes: Annotated[
        int,
        Meta(ge=1, description="The same for all members of a group: the leader gets it in one response."),
    ] = 32 * MEBIBYTE
    max_group_assignment_bytes: Annotated[
        int, Meta(ge=1, description="One generation's assignments: they are one record in the offsets topic.")
    ] = 32 * MEBIBYTE
    max_subscribed_topics: Annotated[
        int,
        Meta(
            ge=1,
            description="Topics that one member of a share group subscribes to; each is looked up when topics change.",
        ),
    ] = 10_000
    max_queues: Annotated[
        int,
        Meta(
            ge=1,
            description="Queues on partitions that one node leads; each costs 10 KB, and more while it has work.",
        ),
    ] = 50_000
    max_share_sessions: Annotated[
        int,
        Meta(
            ge=1,
            description="Sessions of share consumers on one node; Kafka's group.share.max.share.sessions.",
        ),
    ] = 10_000
    max_partitions_per_session: Annotated[
        int,
        Meta(ge=1, description="Partitions in the session of one share consumer."),
    ] = 10_000
    max_group_configs: Annotated[
        int,
        Meta(
            ge=1,
            description="Groups with configs of their own: every node and every metadata snapshot holds them all.",
        ),
    ] = 10_000
    max_offset_metadata_bytes: Annotated[
        int,
        Meta(
            ge=0, le=32_767, description="A committed offset's free text; Kafka's offset.metadata.max.bytes."
        ),
    ] = 4096

    max_peer_frame_bytes: Annotated[
        int,
        Meta(
            ge=MEBIBYTE,
            le=2**31 - 1,
            description="One message between nodes; must hold the largest batch that a topic may take.",
        ),
    ] = 64 * MEBIBYTE
    max_peer_queue_bytes: Annotated[
        int,
        Meta(
            ge=MEBIBYTE,
            description="Bytes that wait to be sent to one other node; past it messages are dropped and sent later.",
        ),
    ] = 128 * MEBIBYTE
    max_peers: Annotated[
        int, Meta(ge=1, description="Nodes connected at once; there is one connection for each.")
    ] = 1_000
    max_peer_handshakes: Annotated[
        int,
        Meta(
            ge=1,
            description="Connections on the inter-node port without a handshake yet; past it the oldest is closed.",
        ),
    ] = 64
    peer_handshake_timeout_ms: Annotated[
        int,
        Meta(
            ge=1, description="How long the handshake on the inter-node port may take; nodes need a few ms."
        ),
    ] = 5_000
    max_peer_calls: Annotated[
        int, Meta(ge=1, description="Calls from one node to another that are not answered yet.")
    ] = 1_024

    max_http_connections: Annotated[
        int,
        Meta(
            ge=1,
            description="Open connections on the HTTP port; at most an eighth of the files that the process may open.",
        ),
    ] = 4_096
    http_idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="An HTTP connection without a request is closed; behind a proxy, set it longer than there.",
        ),
    ] = 10_000
    max_http_body_bytes: Annotated[
        int,
        Meta(
            ge=KIBIBYTE,
            le=1024 * MEBIBYTE,
            description="One body on the HTTP port: a few of the largest batches that a topic takes by default.",
        ),
    ] = 8 * MEBIBYTE
    http_body_timeout_ms: Annotated[
        int,
        Meta(ge=1, description="How long a body may take to arrive: 8 MiB in that time are 2 Mbit a second."),
    ] = 30_000
    max_http_memory_bytes: Annotated[
        int,
        Meta(
            ge=MEBIBYTE,
            description="Bodies and responses of all HTTP clients together; past it requests are refused with 503.",
        ),
    ] = 256 * MEBIBYTE

    max_credit: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Messages that a push subscriber or worker may hold, whatever it asks for; each costs memory.",
        ),
    ] = 100_000
    max_partitions_per_subscription: Annotated[
        int,
        Meta(
            ge=1, description="Partitions of one push subscriber: each costs a long poll and a few kilobytes."
        ),
    ] = 2_000

    def validate(self) -> None:
        """Raises ConfigError for a limit outside its range, or for two that contradict each other."""
        check_fields(self, "limits.")
        if self.max_peer_queue_bytes < self.max_peer_frame_bytes:
            expected = f"at least limits.max_peer_frame_bytes ({self.max_peer_frame_bytes})"
            raise ConfigError("limits.max_peer_queue_bytes", self.max_peer_queue_bytes, expected)


def reason(name: str) -> str:
    """Why a limit has its value, for help texts and errors."""
    meta: Meta = get_type_hints(Limits, include_extras=True)[name].__metadata__[0]
    return meta.description or ""
