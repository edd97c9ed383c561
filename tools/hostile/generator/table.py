"""The surfaces that the generator attacks, as scenarios."""

from tests.kafka.requests import write
from tools.hostile.attack import Attack
from tools.hostile.generator.http_requests import attack_http
from tools.hostile.generator.kafka_requests import attack_kafka, attack_kafka_cluster
from tools.hostile.generator.peer_bytes import attack_gossip, attack_peers
from tools.hostile.generator.websocket_frames import attack_websockets
from tools.hostile.scenario import UNCOUNTED_BYTES, Scenario

RECORDS = 20
SECONDS = 3_600.0
"""The plan bounds a surface, this only a harness that hangs."""
SMALL = (
    "--set", "limits.max_topics=200", "--set", "limits.max_partitions=1000",
    "--set", "limits.max_partitions_per_topic=100", "--set", "limits.max_groups=1000",
    "--set", "limits.max_queues=500", "--set", "groups.offsets_topic_partitions=4",
)  # fmt: skip
"""Attacks create things at random: they should meet the limits, and not fill the disk."""


def create_victims(attack: Attack) -> None:
    """Topics, a queue, and some records: attacks on nothing would not get far."""
    attack.must_create("victim")
    attack.must_create("victim-wide", 4)
    attack.http("POST", "/v1/queues", {"queue": "victims", "topic": "victim"})
    with attack.kafka() as client:
        for _ in range(RECORDS):
            write(client, "victim", b"record")


SURFACES = (
    Scenario(
        name="kafka-requests",
        does="generated: every Kafka API and version with hostile values and damaged frames",
        prepare=create_victims,
        attack=attack_kafka,
        flags=SMALL,
        seconds=SECONDS,
        is_seeded=True,
    ),
    Scenario(
        name="kafka-cluster",
        does="generated: the same to three nodes",
        prepare=create_victims,
        attack=attack_kafka_cluster,
        nodes=3,
        flags=SMALL,
        seconds=SECONDS,
        is_seeded=True,
    ),
    Scenario(
        name="http-requests",
        does="generated: every HTTP operation with hostile parameters, bodies and damaged requests",
        prepare=create_victims,
        attack=attack_http,
        flags=SMALL,
        seconds=SECONDS,
        is_seeded=True,
    ),
    Scenario(
        name="websocket-frames",
        does="generated: every verb of push and work with hostile values and damaged frames",
        prepare=create_victims,
        attack=attack_websockets,
        flags=SMALL,
        seconds=SECONDS,
        is_seeded=True,
    ),
    Scenario(
        name="inter-node-bytes",
        does="generated: handshakes on the inter-node port of three nodes, without the key",
        attack=attack_peers,
        nodes=3,
        memory_bytes=UNCOUNTED_BYTES,
        seconds=SECONDS,
        is_seeded=True,
    ),
    Scenario(
        name="gossip-packets",
        does="generated: gossip to three nodes, without the key",
        attack=attack_gossip,
        nodes=3,
        memory_bytes=UNCOUNTED_BYTES,
        seconds=SECONDS,
        is_seeded=True,
    ),
)
