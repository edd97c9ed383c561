"""kill -9 while a producer writes: every acknowledged message is in the topic afterwards, once."""

import time
from concurrent.futures import ThreadPoolExecutor

from penstock.cli.demo_chapters.numbered import Numbered
from penstock.cli.demo_stage import Stage

TOPIC = "payments"
PARTITIONS = 3


def play(stage: Stage) -> None:
    stage.chapter("A crash")
    stage.create_topics(TOPIC, partitions=PARTITIONS)
    sender = Numbered(stage.connection, TOPIC, stage.messages)
    gaps_ms: list[float] = []
    sender.after_kill = lambda _: gaps_ms.append((time.perf_counter() - (sender.killed_at or 0)) * 1000)
    with stage.working("producing, and killing the broker meanwhile"):
        sender.send_all(stage.broker.kill, lambda: _restart(stage, sender))
    stage.say(f"kill -9 after {sender.acked_before:,} acknowledged messages, with the producer still sending")
    restart_ms = stage.broker.start_seconds * 1000
    stage.say(f"started again on the same folder: recovered and ready after {restart_ms:.0f} ms")
    stage.say(f"the producer's next message was acknowledged {gaps_ms[0]:.0f} ms after the crash")
    stage.figure("restart_ms", "restart after kill -9 to ready, ms", restart_ms)
    stage.figure("gap_ms", "crash to the next acknowledgement, ms", gaps_ms[0])
    with stage.working("counting"):
        stored, lost, repeated = sender.count(stage.connection, PARTITIONS)
    stage.say(f"all {stored:,} acknowledged messages are there: none lost, none twice")
    stage.figure("lost", "acknowledged messages lost in the crash", lost)
    stage.figure("stored_twice", "messages stored twice", repeated)


def _restart(stage: Stage, sender: Numbered) -> None:
    with ThreadPoolExecutor(1) as elsewhere:
        restart = elsewhere.submit(stage.start_broker)
        while not restart.done():
            sender.producer.poll(0.01)
        restart.result()
