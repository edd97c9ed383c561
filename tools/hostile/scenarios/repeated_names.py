"""Small requests with large answers: the same name thousands of times."""

from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages import (
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_fetch,
)
from tests.kafka.raw import RawClient
from tools.hostile.attack import Attack, Stopwatch
from tools.hostile.brokers import MEBIBYTE

TOPIC = "wide"
PARTITIONS = 200
TIMES = 10_000
MOST_PARTITIONS = 10_000
OFFSETS_TOPIC = "__consumer_offsets"
METADATA_VERSION = 9
TOPIC_RESOURCE = 2


def create_wide_topic(attack: Attack) -> None:
    attack.must_create(TOPIC, PARTITIONS)


def create_widest_topic(attack: Attack) -> None:
    attack.must_create(TOPIC, MOST_PARTITIONS)


def create_offsets_topic(attack: Attack) -> None:
    with attack.kafka() as client:
        request = find_coordinator.FindCoordinatorRequest(key="some")
        client.call(ApiKey.FIND_COORDINATOR, 2, request)


def name_one_topic_often(attack: Attack) -> None:
    _measured(attack, [attack.kafka()], _metadata(TOPIC, TIMES))


def name_the_widest_topic_often(attack: Attack) -> None:
    _measured(attack, [attack.kafka()], _metadata(TOPIC, 700))


def name_the_offsets_topic_often(attack: Attack) -> None:
    """To all nodes at once."""
    clients = [attack.kafka(node) for node in attack.brokers.nodes]
    _measured(attack, clients, _metadata(OFFSETS_TOPIC, TIMES))


def _metadata(topic: str, times: int) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=topic)] * times, allow_auto_topic_creation=False
    )


def _measured(attack: Attack, clients: list[RawClient], request: Message) -> None:
    watch = Stopwatch()
    for client in clients:
        client.request(ApiKey.METADATA, METADATA_VERSION, request)
    size = sum(len(client.read_frame()) for client in clients)
    attack.note = f"answered in {watch.seconds:.2f} s with {size / MEBIBYTE:.2f} MiB"


def name_things_often_in_other_requests(attack: Attack) -> None:
    """Each is answered, or its connection closed."""
    slowest = (0.0, "")
    for api_key, version, request in _others():
        client = attack.kafka()
        watch = Stopwatch()
        try:
            client.request(api_key, version, request)
            client.read_frame()
        except ConnectionError:
            continue  # refused
        finally:
            attack.close(client.socket)
            slowest = max(slowest, (watch.seconds, api_key.name))
    attack.note = f"slowest: {slowest[1]}, {slowest[0]:.2f} s"


def _others() -> list[tuple[ApiKey, int, Message]]:
    read = fetch.FetchTopic(topic=TOPIC, partitions=[fetch.FetchPartition(partition=0)])
    asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    group = offset_fetch.OffsetFetchRequestGroup(
        group_id="some",
        topics=[offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0] * 100)],
    )
    resource = describe_configs.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=TOPIC)
    return [
        (
            ApiKey.FETCH,
            11,
            fetch.FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[read] * TIMES),
        ),
        (
            ApiKey.LIST_OFFSETS,
            5,
            list_offsets.ListOffsetsRequest(
                replica_id=-1,
                topics=[list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[asked])] * TIMES,
            ),
        ),
        (
            ApiKey.FIND_COORDINATOR,
            4,
            find_coordinator.FindCoordinatorRequest(coordinator_keys=["some"] * TIMES),
        ),
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            describe_configs.DescribeConfigsRequest(resources=[resource] * TIMES, include_documentation=True),
        ),
        (ApiKey.OFFSET_FETCH, 8, offset_fetch.OffsetFetchRequest(groups=[group] * 900)),
        (ApiKey.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest(groups=["some"] * TIMES)),
    ]
