"""A consumer of kafka-python that reads from the beginning."""

from kafka import KafkaConsumer

from penstock import Broker

METADATA_AGE_MS = 1_000
"""How long a lost request costs. kafka-python 3.0 sends a request for metadata 100 ms after it has connected. If the
machine is so busy that the consumer subscribes while the response is on its way, the client forgets that it needs
the metadata of the new topic. A consumer without a group reads nothing then, until its metadata is too old: by default
after 5 minutes."""


def new_consumer(broker: Broker, *topics: str, **settings: object) -> KafkaConsumer:
    return KafkaConsumer(
        *topics,
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        metadata_max_age_ms=METADATA_AGE_MS,
        **settings,
    )
