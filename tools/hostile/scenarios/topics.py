"""Topics that cost much to create, have names that are hard to store, or are more than there are files."""

import time
from contextlib import suppress

from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.kafka.requests import ask, write
from tools.hostile.attack import Attack, Stopwatch

MANY_PARTITIONS = (3_000, 10_000)
LONGEST_NAMES = range(244, 250)
OPEN_FILES = 128
TOPICS = 150
DELETE_VERSION = 5
READY_SECONDS = 20.0
RETRY_SECONDS = 0.1


def create_many_partitions(attack: Attack) -> None:
    times = []
    for count in MANY_PARTITIONS:
        watch = Stopwatch()
        attack.must_create(f"partitions-{count}", count)
        times.append(f"{count:,} partitions in {watch.seconds:.1f} s")
    attack.note = ", ".join(times)


def create_long_names_again(attack: Attack) -> None:
    for length in LONGEST_NAMES:
        name = "n" * length
        attack.must_create(name)
        with attack.kafka() as client:
            request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
            answer = ask(client, ApiKey.DELETE_TOPICS, DELETE_VERSION, request, DeleteTopicsResponse)
            if answer.responses[0].error_code != ErrorCode.NONE:
                attack.fail(
                    f"a topic with a name of {length} characters was not deleted: {answer.responses[0]}"
                )
        attack.must_create(name)
        if not _accepts_records(attack, name, time.monotonic() + READY_SECONDS):
            attack.fail(f"a topic with a name of {length} characters is offline after it was created again")


def create_more_topics_than_files(attack: Attack) -> None:
    """Afterwards, with its own connections closed, every topic must take records."""
    names = [f"files-{number}" for number in range(TOPICS)]
    for name in names:
        with suppress(ConnectionError):  # the node may refuse connections, and must take them again later
            attack.create_topic(name)
            _write(attack, name)
    with suppress(OSError):
        for _ in range(OPEN_FILES):
            attack.kafka()
    attack.close_all()
    deadline = time.monotonic() + READY_SECONDS
    offline = [name for name in names if not _accepts_records(attack, name, deadline)]
    if offline:
        attack.fail(f"{len(offline)} of {TOPICS} topics take no records after files are free again")
    attack.note = f"{TOPICS - len(offline)} of {TOPICS} topics take records"


def _accepts_records(attack: Attack, topic: str, deadline: float) -> bool:
    """Also if it has to be created first, and if the node needs a while."""
    while True:
        with suppress(ConnectionError):
            attack.create_topic(topic)
            if _write(attack, topic) == ErrorCode.NONE:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(RETRY_SECONDS)


def _write(attack: Attack, topic: str) -> int:
    client = attack.kafka()
    try:
        return write(client, topic).error_code
    finally:
        attack.close(client.socket)
