"""A broker in a separate process, and a topic."""

from penstock.cli.demo_stage import Stage

TOPIC = "orders"
PARTITIONS = 6


def play(stage: Stage) -> None:
    stage.chapter("A broker")
    with stage.working("starting a broker"):
        broker = stage.start_broker()
    stage.say(f"`penstock serve` is ready after {broker.start_seconds * 1000:.0f} ms, at {broker.bootstrap}")
    stage.say(f"its web console is at {broker.console_url}; `penstock demo --keep` leaves it up in the end")
    stage.figure("start_ms", "start of the process to ready, ms", broker.start_seconds * 1000)
    stage.create_topics(TOPIC, partitions=PARTITIONS)
    stage.say(f"topic {TOPIC} with {PARTITIONS} partitions")
