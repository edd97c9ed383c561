"""The same topic as a work queue, with a worker that dies, and as a feed that is pushed to a subscriber."""

import subprocess
import sys
import time

from penstock.cli.demo_stage import Stage
from penstock.cli.problem import Problem
from penstock.client import Client

TOPIC, GROUP, SUBSCRIBER = "orders-to-pack", "packers", "display"
DEAD_LETTERS = f"{TOPIC}.dlq"
JOBS = 2000
KILL_AFTER = 200
BROKEN = 1234
"""A job that the worker rejects."""
QUIET_SECONDS = 20.0
UNSURE_SECONDS = 1.0
"""How long to wait for a job that the worker may have acknowledged in its last moment."""


def play(stage: Stage) -> None:
    stage.chapter("A queue, and a subscriber")
    with Client(stage.connection.bootstrap) as client:
        client.admin.create_topic(TOPIC)
        client.admin.create_queue(GROUP, topic=TOPIC)
        for number in range(JOBS):
            client.publish_soon(TOPIC, b"%d" % number)
        client.flush()
        with stage.working("a worker is at work, and will be killed"):
            first = _work_and_die(stage)
        stage.say(
            f"kill -9 of a worker that had done {len(first.done):,} of {JOBS:,} jobs and held some more"
        )
        with stage.working("another worker does the rest"):
            rest = _finish(stage, client, first)
        _verify(stage, first, rest)
        with stage.working("pushing"):
            _push(stage, client)


class WorkerLog:
    """The lines that a worker printed before it died."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.done: set[int] = set()

    def read(self, line: str) -> None:
        word, _, number = line.partition(" ")
        if line.endswith("\n"):
            (self.done if word == "done" else self.begun).add(int(number))

    @property
    def unsure(self) -> set[int]:
        """Jobs that may have been acknowledged: the worker died before it could print that. If not, they come again."""
        return self.begun - self.done


def _work_and_die(stage: Stage) -> WorkerLog:
    """Kills the first worker in the middle of its work."""
    command = [sys.executable, "-m", "penstock.cli.demo_chapters.crashing_worker"]
    worker = subprocess.Popen(
        [*command, stage.connection.bootstrap, TOPIC, GROUP], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    log = WorkerLog()
    try:
        for line in worker.stdout:
            log.read(line)
            if len(log.done) == KILL_AFTER:
                break
    finally:
        worker.kill()
        for line in worker.stdout:
            log.read(line)
        worker.stdout.close()
        worker.wait()
    if len(log.done) < KILL_AFTER:
        raise Problem("the worker of the demo ended by itself")
    return log


def _finish(stage: Stage, client: Client, first: WorkerLog) -> list[int]:
    """The jobs that the second worker got, in order. One of them it rejects."""
    rest: list[int] = []
    began = time.perf_counter()
    with client.queue(GROUP, topic=TOPIC, idle_s=QUIET_SECONDS) as jobs:
        for job in jobs:
            number = int(job.value or b"0")
            rest.append(number)
            job.reject() if number == BROKEN else job.ack()
            if len(first.begun | set(rest)) == JOBS:
                break
        while first.unsure - set(rest) and (late := jobs.receive(UNSURE_SECONDS)) is not None:
            rest.append(int(late.value or b"0"))
            late.ack()
    rate = len(rest) / (time.perf_counter() - began)
    stage.figure("jobs_per_second", "jobs received and acknowledged per second, one worker", rate)
    return rest


def _verify(stage: Stage, first: WorkerLog, rest: list[int]) -> None:
    twice = [number for number in rest if number in first.done]
    lost = set(range(JOBS)) - first.begun - set(rest)
    if lost or twice or len(set(rest)) != len(rest):
        raise Problem(f"of {JOBS} jobs, {len(lost)} were lost and {len(twice)} done twice")
    stage.say(f"a second worker got the other {len(rest):,}: every job was done once")
    stage.figure("jobs_lost", "jobs lost with the worker", 0)


def _push(stage: Stage, client: Client) -> None:
    """All of the topic again, in the log's order; and the one dead letter."""
    seen: list[int] = []
    with client.subscribe(TOPIC, name=SUBSCRIBER, read_old=True, idle_s=QUIET_SECONDS) as feed:
        for message in feed:
            seen.append(int(message.value or b"0"))
            message.ack()
            if len(seen) == JOBS:
                break
    if seen != list(range(JOBS)):
        raise Problem(f"the subscriber was sent {len(seen)} of {JOBS} messages, or not in order")
    stage.say(f"the same topic, pushed to a subscriber: {len(seen):,} messages in the log's order")
    with client.subscribe(
        DEAD_LETTERS, name=SUBSCRIBER + "-dead", read_old=True, idle_s=QUIET_SECONDS
    ) as dead:
        letter = dead.receive(QUIET_SECONDS)
    if letter is None or int(letter.value or b"0") != BROKEN:
        raise Problem("the rejected job is not among the dead letters")
    reason = (dict(letter.headers).get("penstock-dead-reason") or b"").decode()
    stage.say(f"the rejected job is in {DEAD_LETTERS}: {reason}")
