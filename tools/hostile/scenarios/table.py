"""All scenarios, in the order in which they run and in which docs/hardening.md lists them."""

from tools.hostile.brokers import MEBIBYTE
from tools.hostile.generator.table import SMALL, create_victims
from tools.hostile.scenario import MEMORY_BYTES, UNCOUNTED_BYTES, Scenario
from tools.hostile.scenarios import connections, http, largest, repeated_names, security, topics, websockets
from tools.hostile.setups import Setup

PARTITION_BYTES = 30 * 1024
"""What a partition without records may cost."""

SCENARIOS = (
    Scenario(
        name="metadata-repeated",
        does="Metadata names one topic of 200 partitions 10,000 times",
        prepare=repeated_names.create_wide_topic,
        attack=repeated_names.name_one_topic_often,
    ),
    Scenario(
        name="metadata-cluster",
        does="Metadata names `__consumer_offsets` 10,000 times, on three nodes at once",
        prepare=repeated_names.create_offsets_topic,
        attack=repeated_names.name_the_offsets_topic_often,
        nodes=3,
    ),
    Scenario(
        name="metadata-wide",
        does="Metadata names a topic of 10,000 partitions 700 times",
        prepare=repeated_names.create_widest_topic,
        attack=repeated_names.name_the_widest_topic_often,
    ),
    Scenario(
        name="names-repeated",
        does="Fetch, ListOffsets, FindCoordinator, DescribeConfigs, OffsetFetch and DescribeGroups repeat names",
        prepare=repeated_names.create_wide_topic,
        attack=repeated_names.name_things_often_in_other_requests,
    ),
    Scenario(
        name="unread-fetches",
        does="100 connections send three fetches of 55 MB each and never read",
        prepare=connections.store_large_records,
        attack=connections.fetch_and_never_read,
    ),
    Scenario(
        name="http-chunks",
        does="HTTP bodies of 300,000 and 1,000,000 chunks of one byte, with POST and with GET",
        prepare=http.create_records_topic,
        attack=http.send_many_chunks,
    ),
    Scenario(
        name="json-records",
        does="600,000 records in one JSON body",
        prepare=http.create_records_topic,
        attack=http.publish_many_records,
    ),
    Scenario(
        name="long-names",
        does="topics with names of 244 to 249 characters are deleted and created again",
        attack=topics.create_long_names_again,
    ),
    Scenario(
        name="few-files",
        does="150 topics on a node that may open 128 files",
        attack=topics.create_more_topics_than_files,
        open_files=topics.OPEN_FILES,
        seconds=60.0,
    ),
    Scenario(
        name="commit-retention",
        does="OffsetCommit v2 with a retention of 2^63-1 ms",
        attack=connections.commit_offsets_for_ever,
    ),
    Scenario(
        name="sockets-gone",
        does="300 WebSockets send a wrong frame and go away while they are told why",
        attack=websockets.go_away_while_told_why,
    ),
    Scenario(
        name="many-partitions",
        does="CreateTopics with 3,000 and then 10,000 partitions",
        attack=topics.create_many_partitions,
        memory_bytes=MEMORY_BYTES + 13_000 * PARTITION_BYTES,
        keeps_bytes=UNCOUNTED_BYTES + 13_000 * PARTITION_BYTES,
        seconds=60.0,
    ),
    Scenario(
        name="bad-connections",
        does="8,000 connections send bytes that are not Kafka's protocol",
        attack=connections.send_garbage,
    ),
    Scenario(
        name="waiting-receives",
        does="1,800 HTTP receives wait for jobs",
        prepare=http.create_queue,
        attack=http.wait_for_jobs,
    ),
    Scenario(
        name="silent-websockets",
        does="1,000 WebSockets are opened and say nothing",
        attack=websockets.say_nothing,
        memory_bytes=UNCOUNTED_BYTES,
    ),
    Scenario(
        name="many-queues",
        does="20 callers at once ask for /v1/queues and /metrics of a node with 2,000 queues",
        prepare=http.create_many_queues,
        attack=http.list_many_queues,
        seconds=90.0,
    ),
    Scenario(
        name="tiny-batches",
        does="one Produce request with 50,000 batches of one record",
        prepare=connections.create_empty_topic,
        attack=connections.produce_tiny_batches,
    ),
    Scenario(
        name="largest-requests",
        does="every Kafka API with 20,000 elements in each of its arrays, repeated and distinct",
        prepare=create_victims,
        attack=largest.send_largest_requests,
        flags=SMALL,
        seconds=120.0,
    ),
    Scenario(
        name="empty-pings",
        does="two WebSockets send 200,000 empty pings each",
        attack=websockets.send_empty_pings,
        memory_bytes=UNCOUNTED_BYTES,
    ),
    Scenario(
        name="half-frames",
        does="2,000 connections announce frames of 50 MB and send 10 KB of them",
        attack=connections.send_half_frames,
    ),
    Scenario(
        name="slow-bodies",
        does="500 HTTP bodies arrive byte by byte",
        prepare=http.create_records_topic,
        attack=http.send_bodies_slowly,
        memory_bytes=UNCOUNTED_BYTES,
    ),
    Scenario(
        name="bombs",
        does="180 batches of 10 to 400 KB that unpack to 100 MB each",
        prepare=connections.create_topic_that_unpacks,
        attack=connections.send_bombs,
    ),
    Scenario(
        name="producer-ids",
        does="one connection takes 20,000 producer ids",
        attack=connections.take_producer_ids,
        memory_bytes=64 * MEBIBYTE,
    ),
    Scenario(
        name="slow-handshakes",
        does="4,000 TLS handshakes stop before their first byte, in the middle, or after the first message",
        attack=security.stop_in_handshakes,
        setup=Setup.TLS,
        memory_bytes=UNCOUNTED_BYTES,
    ),
    Scenario(
        name="unfinished-logins",
        does="4,000 connections stop in the middle of their login",
        attack=security.stop_in_logins,
        setup=Setup.LOGIN,
        memory_bytes=UNCOUNTED_BYTES,
    ),
    Scenario(
        name="wrong-passwords",
        does="10,000 wrong passwords, over 1,000 connections at a time",
        attack=security.guess_passwords,
        setup=Setup.LOGIN,
        memory_bytes=UNCOUNTED_BYTES,
        seconds=180.0,
    ),
    Scenario(
        name="forged-tokens",
        does="tokens with a swapped `alg`, a foreign key or none, and an identity provider that is slow or gone",
        attack=security.forge_tokens,
        setup=Setup.LOGIN,
        memory_bytes=UNCOUNTED_BYTES,
        seconds=240.0,
    ),
    Scenario(
        name="strangers",
        does="1,500 strangers on the inter-node port of three nodes with TLS: no certificate, a foreign one, no TLS",
        attack=security.knock_as_strangers,
        setup=Setup.MUTUAL_TLS,
        nodes=3,
        memory_bytes=UNCOUNTED_BYTES,
    ),
    Scenario(
        name="replayed-gossip",
        does="gossip between three nodes is sent again and again, out of order, and to the wrong node",
        attack=security.replay_gossip,
        setup=Setup.RELAYED,
        nodes=3,
        memory_bytes=UNCOUNTED_BYTES,
    ),
)
