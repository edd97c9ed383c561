"""kill -9 while a producer is at work: what was acknowledged is there, once."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import NewTopic

from penstock.cli.demo_chapters.counting import read_numbers
from penstock.cli.demo_stage import Stage
from penstock.cli.problem import Problem

TOPIC = "payments"
PARTITIONS = 3
CRASH_AT = 0.4
"""Of the messages acknowledged; the rest is in flight or not sent yet when the broker dies."""
IN_FLIGHT_MOST = 0.2
"""Of the messages, or a fast producer would have handed over everything before the crash."""
PATIENCE_S = 45.0


class Account:
    """Which numbers were acknowledged, and when the first after the crash."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.failed = 0
        self.crash_seconds: float | None = None
        self.recovered_seconds: float | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acknowledged.append(int(message.key() or b"0"))
        if self.crash_seconds is not None and self.recovered_seconds is None:
            self.recovered_seconds = time.perf_counter()


def play(stage: Stage) -> None:
    stage.chapter("A crash")
    admin = stage.connection.admin()
    [future] = admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)]).values()
    stage.connection.wait(future, f"creating {TOPIC}")
    with stage.working("producing, and killing the broker meanwhile"):
        account, before = _produce_through_a_crash(stage)
    stage.say(f"kill -9 after {before:,} acknowledged messages, with the producer still sending")
    _tell_recovery(stage, account)
    with stage.working("counting"):
        stored = read_numbers(stage.connection, TOPIC, PARTITIONS)
    _verify(stage, account, stored)


def _produce_through_a_crash(stage: Stage) -> tuple[Account, int]:
    """The idempotent producer is not told about the crash: it retries until the broker is back."""
    account = Account()
    producer = stage.connection.producer(
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        queue_buffering_max_messages=int(stage.messages * IN_FLIGHT_MOST),
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=100,
    )
    before = 0
    for number in range(stage.messages):
        while True:
            try:
                producer.produce(TOPIC, b"paid", str(number).encode(), on_delivery=account.delivered)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        if account.crash_seconds is None and len(account.acknowledged) >= stage.messages * CRASH_AT:
            before = len(account.acknowledged)
            _crash(stage, account, producer)
    if producer.flush(PATIENCE_S) or account.failed:
        raise Problem("the producer could not deliver everything after the crash")
    return account, before


def _crash(stage: Stage, account: Account, producer: Producer) -> None:
    stage.broker.kill()
    while producer.poll(0):  # acknowledgements from before the crash
        pass
    account.crash_seconds = time.perf_counter()
    with ThreadPoolExecutor(1) as elsewhere:
        restart = elsewhere.submit(stage.start_broker)
        while not restart.done():
            producer.poll(0.01)
        restart.result()


def _tell_recovery(stage: Stage, account: Account) -> None:
    assert account.crash_seconds is not None
    assert account.recovered_seconds is not None
    restart_ms = stage.broker.start_seconds * 1000
    gap_ms = (account.recovered_seconds - account.crash_seconds) * 1000
    stage.say(f"started again on the same folder: recovered and ready after {restart_ms:.0f} ms")
    stage.say(f"the producer's next message was acknowledged {gap_ms:.0f} ms after the crash")
    stage.figure("restart_ms", "restart after kill -9 to ready, ms", restart_ms)
    stage.figure("gap_ms", "crash to the next acknowledgement, ms", gap_ms)


def _verify(stage: Stage, account: Account, stored: Counter[int]) -> None:
    lost = sum(1 for number in account.acknowledged if not stored[number])
    repeated = sum(1 for count in stored.values() if count > 1)
    if lost or repeated or len(stored) != stage.messages:
        raise Problem(f"{lost:,} acknowledged messages are lost and {repeated:,} are there more than once")
    stage.say(f"all {len(account.acknowledged):,} acknowledged messages are there: none lost, none twice")
    stage.figure("lost", "acknowledged messages lost in the crash", lost)
    stage.figure("stored_twice", "messages stored twice", repeated)
