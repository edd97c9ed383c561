"""`penstock worker`: N processes that are replaced when they die, drain when they are told to, and die at last."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from penstock import Broker
from penstock.cli.worker import status_table
from penstock.client import Client
from penstock.client.worker_counts import WorkerCounts
from penstock.worker.restarts import DELAY_SECONDS_MAX, STABLE_SECONDS, RestartBackoff
from penstock.worker.supervisor import WorkerProcess
from tests.kafka.waiting import wait_until

SOON = 60.0
Unique = Callable[[str], str]

BLOCKING = """
import os, threading
from penstock.client import Client, Reject

client = Client(os.environ["SERVERS"])

@client.worker(os.environ["QUEUE"], concurrency=2, backoff=0.01)
def handle(job):
    client.publish(os.environ["QUEUE"] + ".done", f"{job.text()} {os.getpid()}")
    if job.text() == "bad":
        raise Reject("bad")
    if job.text() == "hang":
        threading.Event().wait()
"""

ASYNCIO = """
import os
from penstock.client import AsyncClient

def make():
    client = AsyncClient(os.environ["SERVERS"])

    @client.every("1s", name=os.environ["QUEUE"])
    async def handle(job):
        await client.publish(os.environ["QUEUE"] + ".done", f"{job.json()['tick']} {os.getpid()}")

    return client
"""


class Command:
    """`penstock worker`, and the events that it prints as JSON."""

    def __init__(self, folder: Path, broker: Broker, queue: str, *arguments: str) -> None:
        environment = {**os.environ, "SERVERS": broker.bootstrap_servers, "QUEUE": queue}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "worker", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )
        self._events: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += self.process.stderr

    def wait_for(self, event: str, **facts: object) -> dict[str, Any]:
        """The first such event that no call before has returned."""
        assert self.process.stdout is not None
        wanted = {"event": event, **facts}.items()
        while True:
            for told in self._events:
                if wanted <= {name: told.get(name) for name in ("event", *facts)}.items():
                    self._events.remove(told)
                    return told
            line = self.process.stdout.readline()
            assert line, f"ended without {event}: {self.errors}"
            self._events.append(json.loads(line))

    def end(self, number: signal.Signals | None = None) -> int:
        """The exit code."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(SOON)
        self._reader.join(SOON)
        return code

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SOON)
        self._reader.join(SOON)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "blocking.py").write_text(BLOCKING)
    (tmp_path / "tasks.py").write_text(ASYNCIO)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text(
        "from penstock.client import Client\nclient = Client('127.0.0.1:1')\nnumber = 1"
    )
    return tmp_path


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def queue(client: Client, unique: Unique) -> str:
    name = unique("jobs")
    client.admin.create_queue(name, topic=name)
    client.admin.create_topic(f"{name}.done")
    return name


def handled(client: Client, queue: str, count: int) -> list[tuple[str, int]]:
    """Jobs and the processes that have handled them, as soon as there are so many."""
    with client.subscribe(f"{queue}.done", name=f"{queue}.reader.{count}", read_old=True) as done:
        found = []
        while len(found) < count:
            message = done.receive(SOON)
            assert message is not None, f"{len(found)} of {count}"
            text, pid = message.text().split()
            found.append((text, int(pid)))
        return found


def wait_for_end(*pids: int) -> None:
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], SOON)
    assert not alive, gone


def test_processes_that_die_are_replaced_and_all_jobs_are_done(
    folder: Path, broker: Broker, client: Client, queue: str
) -> None:
    started_at = time.monotonic()
    with Command(folder, broker, queue, "blocking:client", "--processes", "2", "--json") as command:
        pids = [command.wait_for("ready", worker=number)["pid"] for number in (1, 2)]
        for number in range(50):
            client.publish_soon(queue, str(number))
        client.publish(queue, "bad")
        assert len(set(handled(client, queue, 51))) == 51
        wait_until(
            lambda: client.admin.queue(queue).undone == 0
        )  # a job that is not acked yet would come again
        os.kill(pids[0], signal.SIGKILL)
        ended = command.wait_for("ended", worker=1)
        assert ended["exit_code"] == -signal.SIGKILL
        is_young = time.monotonic() - started_at < STABLE_SECONDS
        assert ended["starts_again_in_s"] in ((1.0,) if is_young else (0.0, 1.0))
        restarted = command.wait_for("ready", worker=1)
        assert restarted["pid"] != pids[0]
        os.kill(pids[1], signal.SIGKILL)
        client.publish(queue, "after")
        text, pid = handled(client, queue, 52)[-1]
        replaced = command.wait_for("ready", worker=2)
        assert text == "after"
        assert pid in (restarted["pid"], replaced["pid"])
        assert command.end(signal.SIGTERM) == 0, command.errors
    assert client.admin.queue(queue).undone == 0


def test_a_hanging_handler_has_its_grace_time_and_a_second_signal_kills_it(
    folder: Path, broker: Broker, client: Client, queue: str
) -> None:
    client.publish(queue, "hang")
    arguments = ("blocking:client", "--json", "--grace", "1h")
    with Command(folder, broker, queue, *arguments) as command:
        pid = command.wait_for("ready")["pid"]
        assert handled(client, queue, 1) == [("hang", pid)]
        command.process.send_signal(signal.SIGINT)
        command.wait_for("stopping")
        assert command.end(signal.SIGINT) == 130
    wait_for_end(pid)
    with Command(folder, broker, queue, "blocking:client", "--json", "--grace", "100ms") as command:
        command.wait_for("ready")
        handled(client, queue, 2)
        assert command.end(signal.SIGTERM) == 1


def test_processes_end_with_their_supervisor(
    folder: Path, broker: Broker, client: Client, queue: str
) -> None:
    with Command(folder, broker, queue, "blocking:client", "-p", "2", "--json") as command:
        pids = [command.wait_for("ready", worker=number)["pid"] for number in (1, 2)]
        assert command.end(signal.SIGKILL) == -signal.SIGKILL
    wait_for_end(*pids)


def test_an_asynchronous_application_runs_its_schedules(
    folder: Path, broker: Broker, client: Client, queue: str
) -> None:
    with Command(folder, broker, queue, "tasks:make", "--processes", "2", "--json") as command:
        workers = command.wait_for("ready")["workers"]
        assert [(one["queue"], one["concurrency"]) for one in workers] == [(f"schedule.{queue}", 1)]
        ticks = [tick for tick, _ in handled(client, queue, 3)]
        assert len(set(ticks)) == 3
        assert command.end(signal.SIGTERM) == 0, command.errors


@pytest.mark.parametrize(
    ("target", "told"),
    {"empty:client": "has no workers", "broken:client": "ZeroDivisionError"}.items(),
)
def test_a_target_without_workers_is_refused_once(
    folder: Path, broker: Broker, queue: str, target: str, told: str
) -> None:
    with Command(folder, broker, queue, target) as command:
        assert command.end() == 2
        assert told in command.errors


def test_without_a_terminal_it_prints_lines(folder: Path, broker: Broker, client: Client, queue: str) -> None:
    with Command(folder, broker, queue, "blocking:client") as command:
        assert command.process.stdout is not None
        assert command.process.stdout.readline().startswith("worker 1: started, process ")
        assert command.process.stdout.readline() == f"worker 1: works on {queue} (handle)\n"
        client.publish(queue, "1")
        handled(client, queue, 1)
        command.process.send_signal(signal.SIGTERM)
        rest = command.process.stdout.read()
        assert "stopping: waiting for running handlers" in rest
        assert "worker 1: ended with exit code 0; 1 job done, 0 retried, 0 rejected" in rest
        assert command.end() == 0


def test_in_a_terminal_it_shows_a_table(folder: Path, broker: Broker, client: Client, queue: str) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "SERVERS": broker.bootstrap_servers, "QUEUE": queue, "TERM": "xterm"}
    command = [sys.executable, "-m", "penstock.cli", "worker", "blocking:client"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while b"running" not in shown or b"retried" not in shown:
            shown += os.read(ours, 4096)
        client.publish(queue, "1")
        handled(client, queue, 1)
        process.send_signal(signal.SIGTERM)
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the terminal's other end is closed
                break
        assert process.wait(SOON) == 0
        assert b"1 | ended with exit code 0" in shown
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(SOON)
        os.close(ours)


def test_a_process_that_dies_young_is_started_again_later_each_time() -> None:
    backoff = RestartBackoff()
    assert [backoff.delay_s(1.0) for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert [backoff.delay_s(1.0) for _ in range(20)][-1] == DELAY_SECONDS_MAX
    assert backoff.delay_s(STABLE_SECONDS) == 0.0
    assert backoff.delay_s(1.0) == 1.0


def test_the_table_adds_up_the_jobs_of_earlier_processes() -> None:
    one = WorkerProcess(
        number=1, state="waiting", restarts=2, counts=WorkerCounts(done=2), earlier=WorkerCounts(done=40)
    )
    cells = [[str(cell) for cell in column.cells] for column in status_table([one], 0.0).columns]
    assert cells == [["1"], ["-"], ["waiting"], ["-"], ["2"], ["0"], ["42"], ["0"], ["0"]]
