"""`penstock queues receive` and `work`: messages of a queue for people and shell scripts."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import Facts, QueuesApi, asks
from penstock.cli.output import counted, note, show_json
from penstock.cli.parameters import Duration
from penstock.cli.problem import Problem
from penstock.cli.process_groups import ProcessGroups
from penstock.cli.stopping import Stop, stop_on_signals
from penstock.client.errors import ClientError

if TYPE_CHECKING:
    from penstock.client import Job, Queue

WAIT_MS_MAX = 30_000
"""The longest wait of one request to the HTTP API."""
TURN_SECONDS = 0.5
"""How often a worker without jobs looks whether it is to stop."""
UNUSED_ADDRESS = "127.0.0.1:9092"
"""The client finds the nodes by their HTTP addresses, and does not publish."""
GRACE_SECONDS = 5.0
"""How long a command may take to end after SIGTERM."""
REJECTS = os.EX_DATAERR
"""The exit code by which a command says that a message can never be processed: sysexits.h."""


@click.command(
    epilog=examples(
        "penstock queues receive mail",
        "penstock queues receive mail --max 10 --wait 5s --accept",
        "penstock queues receive mail --json | jq -r '.jobs[].receipt'",
    )
)
@click.argument("name")
@click.option("-n", "--max", "most", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--wait", type=Duration(0, WAIT_MS_MAX), default="1s", show_default=True, metavar="TIME",
              help="How long to wait for the first message: up to 30s.")  # fmt: skip
@click.option(
    "--accept", "settlement", flag_value="accept", help="They are done when they have been printed."
)
@click.option("--reject", "settlement", flag_value="reject", help="They go to the dead letters.")
@click.option("--release", "settlement", flag_value="retry", help="Others get them at once.")
@click.option("--consumer", metavar="NAME", help="The name that `queues describe` shows.")
@json_option
@asks(QueuesApi)
def receive(
    api: QueuesApi,
    name: str,
    most: int,
    wait: int,
    settlement: str | None,
    consumer: str | None,
    as_json: bool,
) -> None:
    """Receive messages, and print their values, one per line.

    Without --accept, --reject or --release no other consumer gets them until their lease ends; then they come again.
    --json prints their receipts, too, which settle them over the HTTP API. The exit code is 1 if there was none.
    """
    body: Facts = {"max": most, "wait_ms": wait, "consumer": consumer or "penstock-cli", "encoding": "text"}
    found = api.post(name, "receive", **body)
    jobs = found["jobs"]
    if as_json:
        show_json(found)
    else:
        for job in jobs:
            click.echo(job["value"] if isinstance(job["value"], str) else json.dumps(job["value"]))
    if not jobs:
        raise Problem(f"no message of {name} within {wait / 1000:g} s", "--wait waits longer")
    if settlement is None:
        note(f"leased for {found['lease_ms'] / 1000:g} s, then they come again; --accept settles them")
        return
    receipts = [job["receipt"] for job in jobs]
    rows = [{"receipt": one, "delay_ms": 0} for one in receipts] if settlement == "retry" else receipts
    settled = api.post(name, "settle", **{settlement: rows})
    if settled["refused"]:
        first = settled["refused"][0]["error"]["message"]
        raise Problem(f"{counted(len(settled['refused']), 'message')} not settled: {first}")


@click.command(
    epilog=examples(
        "penstock queues work mail ./send-mail.sh                # each message on its standard input",
        "penstock queues work thumbnails -j 4 --timeout 5m -- convert - -resize 200x png:out.png",
        "penstock queues work mail --exit                        # prints and accepts all messages, then ends",
    ),
)
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [ARGUMENT]...]")
@click.option("-j", "--jobs", "workers", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Messages at a time.")  # fmt: skip
@click.option("-n", "--max", "most", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--exit", "until_empty", is_flag=True, help="End when no message is left.")
@click.option(
    "--timeout",
    type=Duration(1),
    metavar="TIME",
    help="End a command, with all processes that it started, after this time, and retry.",
)
@asks(QueuesApi)
def work(
    api: QueuesApi,
    name: str,
    command: tuple[str, ...],
    workers: int,
    most: int | None,
    until_empty: bool,
    timeout: int | None,
) -> None:
    """Run COMMAND for each message of a queue; without one, print the messages.

    Write -- before a command that has options of its own.
    The command reads the value from its standard input. PENSTOCK_QUEUE, PENSTOCK_TOPIC, PENSTOCK_PARTITION,
    PENSTOCK_OFFSET, PENSTOCK_KEY and PENSTOCK_DELIVERIES are in its environment. Exit code 0: the message is done.
    65: it can never be processed, and goes to the dead letters. Any other code: it is tried again.

    Ctrl-C or SIGTERM lets running commands finish; a second one ends them. A command that is ended gets SIGTERM, and
    SIGKILL five seconds later.
    """
    from penstock.client import Client  # no other command of `queues` needs it

    topics = sorted({row["topic"] for row in api.get(name)["partitions"]})
    until = _until_empty(api, name) if until_empty else None
    with (
        stop_on_signals() as stop,
        Client(UNUSED_ADDRESS, http=api.urls, kafka=api.kafka) as client,
        client.queue(name, topic=topics, prefetch=workers) as queue,
    ):
        shift = _Shift(queue, name, command, most, until, None if timeout is None else timeout / 1000)
        shift.run(workers, stop)
    note(f"{shift.accepted} accepted, {shift.retried} to be tried again, {shift.rejected} rejected")


def _until_empty(api: QueuesApi, name: str) -> Callable[[], bool]:
    """Says whether no message can be delivered now: all are done, leased, or not due."""
    lock = threading.Lock()

    def is_empty() -> bool:
        with lock:
            return all(row["available"] == 0 for row in api.get(name)["partitions"])

    return is_empty


class _Shift:
    """Threads that take messages until they are told to stop."""

    def __init__(
        self,
        queue: "Queue",
        name: str,
        command: Sequence[str],
        most: int | None,
        is_empty: Callable[[], bool] | None,
        timeout_s: float | None,
    ) -> None:
        self._queue = queue
        self._name = name
        self._command = list(command)
        self._left = most
        self._is_empty = is_empty
        self._timeout_s = timeout_s
        self._commands = ProcessGroups(GRACE_SECONDS)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self.accepted = self.retried = self.rejected = 0

    def run(self, workers: int, stop: Stop) -> None:
        threads = [threading.Thread(target=self._work, args=(stop,), daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():  # in steps: signals are handled in this thread, between two of them
                    thread.join(TURN_SECONDS)
        except KeyboardInterrupt:
            self._commands.end()
            raise
        if isinstance(self._failure, ClientError):
            raise Problem(str(self._failure)) from None
        if self._failure is not None:
            raise self._failure

    def _work(self, stop: Stop) -> None:
        was_empty = False
        try:
            while not stop and self._failure is None and self._take_turn():
                job = self._queue.receive(timeout=TURN_SECONDS)
                if job is not None:
                    was_empty = False
                    self._do(job)
                    continue
                self._return_turn()
                is_empty = self._is_empty is not None and self._is_empty()
                if is_empty and was_empty:  # at the first look, a message may still be on its way here
                    return
                was_empty = is_empty
        except BaseException as failure:  # noqa: BLE001 - `run` raises it
            self._failure = failure

    def _take_turn(self) -> bool:
        with self._lock:
            if self._left == 0:
                return False
            self._left = None if self._left is None else self._left - 1
            return True

    def _return_turn(self) -> None:
        with self._lock:
            self._left = None if self._left is None else self._left + 1

    def _do(self, job: "Job") -> None:
        code: int | None = 0
        if not self._command:
            click.echo(job.value or b"")
        else:
            code = self._run(job)
        why = "the command took too long" if code is None else f"the command failed with exit code {code}"
        settle = job.ack if code == 0 else partial(job.reject if code == REJECTS else job.retry, error=why)
        settlement = settle()
        settlement.wait(None)
        with self._lock:
            self.accepted += code == 0
            self.rejected += code == REJECTS
            self.retried += code not in (0, REJECTS)

    def _run(self, job: "Job") -> int | None:
        """The exit code; None if the command was ended after its timeout."""
        key = (
            (job.key or b"").decode(errors="replace").replace("\0", "\ufffd")
        )  # no variable can have a zero byte
        facts = {
            "QUEUE": self._name,
            "TOPIC": job.topic,
            "PARTITION": job.partition,
            "OFFSET": job.offset,
            "KEY": key,
            "DELIVERIES": job.deliveries,
        }
        environment = os.environ | {f"PENSTOCK_{name}": str(value) for name, value in facts.items()}
        try:
            code = self._commands.run(self._command, job.value or b"", environment, self._timeout_s)
        except OSError as failure:
            raise Problem(f"cannot run {self._command[0]}: {failure.strerror}") from None
        if code != 0:
            trouble = (
                f"not done after {self._timeout_s:g} s; tried again" if code is None else f"exit code {code}"
            )
            note(f"{job.topic}-{job.partition} at {job.offset}: {trouble}")
        return code
