"""A broker in a process of its own, and a topic."""

from confluent_kafka.admin import NewTopic

from penstock.cli.demo_stage import Stage

TOPIC = "orders"
PARTITIONS = 6


def play(stage: Stage) -> None:
    stage.chapter("A broker")
    with stage.working("starting a broker"):
        broker = stage.start_broker()
    stage.say(f"`penstock serve` is ready after {broker.start_seconds * 1000:.0f} ms, at {broker.bootstrap}")
    stage.figure("start_ms", "start of the process to ready, ms", broker.start_seconds * 1000)
    admin = stage.connection.admin()
    [future] = admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)]).values()
    stage.connection.wait(future, f"creating {TOPIC}")
    stage.say(f"topic {TOPIC} with {PARTITIONS} partitions")
