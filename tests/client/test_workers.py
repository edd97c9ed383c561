"""Handlers with a pool of workers: acked when they return, retried when they raise, finished before they go."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from random import Random

import pytest

from penstock.client import Client, ClientError, Denied, Job, Reject, Retry
from penstock.client.retry_policy import Decision, WorkerPolicy
from penstock.client.worker_policy import plan_worker

SOON = 60.0
NEVER_EARLIER = WorkerPolicy(backoff_s=1.0, backoff_factor=2.0, max_backoff_s=10.0, jitter=0.0)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.client.workers")


def fill(client: Client, topic: str, count: int) -> None:
    for number in range(count):
        client.publish_soon(topic, str(number))
    client.flush()


def test_a_result_accepts_the_job_and_an_exception_retries_it_with_growing_delays() -> None:
    random = Random(0)
    assert NEVER_EARLIER.decide(1, None, random) == Decision("accept")
    delays = [NEVER_EARLIER.decide(attempt, ValueError(), random).delay_s for attempt in range(1, 7)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert NEVER_EARLIER.decide(255, ValueError(), random).delay_s == 10.0


def test_jitter_bounds_how_much_a_delay_is_shortened() -> None:
    policy = WorkerPolicy(backoff_s=10.0, jitter=0.3)
    random = Random(0)
    delays = [policy.decide(1, ValueError(), random).delay_s or 0 for _ in range(1_000)]
    assert 7.0 <= min(delays) < 7.5
    assert 9.5 < max(delays) <= 10.0


def test_the_last_attempt_rejects() -> None:
    policy = WorkerPolicy(max_attempts=3)
    actions = [policy.decide(attempt, ValueError(), Random(0)).action for attempt in (1, 2, 3, 4)]
    assert actions == ["retry", "retry", "reject", "reject"]
    assert policy.decide(3, None, Random(0)).action == "accept"


def test_a_handler_can_choose_the_outcome_by_its_exception() -> None:
    assert NEVER_EARLIER.decide(1, Reject("never"), Random(0)) == Decision("reject")
    assert NEVER_EARLIER.decide(1, Retry(delay=7), Random(0)) == Decision("retry", 7.0)
    assert NEVER_EARLIER.decide(3, Retry(), Random(0)) == Decision("retry", 4.0)


@pytest.mark.parametrize(
    "mistake", [{"max_attempts": 0}, {"backoff_s": -1}, {"backoff_factor": 0.5}, {"jitter": 2}]
)
def test_invalid_policies_are_refused(mistake: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        WorkerPolicy(**mistake)  # type: ignore[arg-type]


def test_workers_share_the_jobs_and_ack_them(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 50)
    done: list[str] = []
    all_busy = threading.Barrier(4)

    @client.worker(topic, group=group, concurrency=4)
    def handle(job: Job) -> None:
        if int(job.text()) < 4:
            all_busy.wait(SOON)  # passes only if four handlers run at once
        done.append(job.text())
        if len(done) == 50:
            client.stop()

    assert client.run(signals=False)
    assert sorted(map(int, done)) == list(range(50))
    assert client.admin.queue(group).undone == 0


def test_a_failing_job_is_retried_and_at_last_rejected(client: Client, topic: str, group: str) -> None:
    client.publish(topic, b"bad")
    client.publish(topic, b"good")
    attempts: list[int] = []

    @client.worker(topic, group=group, max_attempts=3, backoff=0.01)
    def handle(job: Job) -> None:
        if job.value == b"bad":
            attempts.append(job.deliveries)
            if job.deliveries == 3:
                client.stop()
            raise ValueError("bad")

    assert client.run(signals=False)
    assert attempts == [1, 2, 3]
    assert f"{topic}.dlq" in [one.name for one in client.admin.topics()]


def point_to_point(client: Client, group: str) -> None:
    client.admin.alter_queue(group, {"penstock.queue.exclusive": "true"})


def test_a_worker_of_a_point_to_point_queue_keeps_its_order_when_a_job_fails(
    client: Client, topic: str, group: str
) -> None:
    point_to_point(client, group)
    for value in ("a", "b", "c"):
        client.publish(topic, value)
    seen: list[str] = []

    @client.worker(topic, group=group, concurrency=1, backoff=0.01)
    def handle(job: Job) -> None:
        seen.append(job.text())
        if job.text() == "c":
            client.stop()
        if seen == ["a"]:
            raise ValueError("not yet")

    assert client.run(signals=False)
    assert seen == ["a", "a", "b", "c"]
    assert client.admin.queue(group).undone == 0


def test_a_worker_prefetches_one_job_unless_its_queue_is_exclusive() -> None:
    def credit(concurrency: int, prefetch: int | None) -> tuple[int, int]:
        options = {"concurrency": concurrency, "prefetch": prefetch, "policy": WorkerPolicy()}
        return plan_worker(("orders",), "workers", print, standby=False, **options).credit  # type: ignore[arg-type]

    assert credit(4, None) == (8, 4)
    assert credit(1, 10) == (10, 10)
    assert credit(4, 1) == (4, 4)  # fewer would leave handlers without work


def test_stopping_finishes_running_jobs_and_returns_the_others(
    client: Client, topic: str, group: str
) -> None:
    client.admin.alter_queue(group, {"share.record.lock.duration.ms": "3600000"})
    fill(client, topic, 10)
    begun, go_on = threading.Event(), threading.Event()
    finished: list[str] = []

    @client.worker(topic, group=group, prefetch=10)
    def handle(job: Job) -> None:
        begun.set()
        go_on.wait(SOON)
        finished.append(job.text())

    runner = threading.Thread(target=lambda: client.run(signals=False))
    runner.start()
    assert begun.wait(SOON)
    client.stop()
    with client.queue(topic, group=group) as other:
        job = other.receive(SOON)  # returned at once, although the handler is still busy
        assert job is not None
        assert (job.text(), job.deliveries) == ("1", 1)  # no worker had begun it
        go_on.set()
        runner.join(SOON)
        assert not runner.is_alive()
    assert finished == ["0"]
    info = client.admin.queue(group)
    assert info.undone == 9


def test_a_handler_that_outlasts_the_grace_time_is_abandoned(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 1)
    begun, go_on = threading.Event(), threading.Event()
    outcome: list[bool] = []

    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        begun.set()
        go_on.wait(SOON)

    runner = threading.Thread(target=lambda: outcome.append(client.run(signals=False, grace=0.1)))
    runner.start()
    assert begun.wait(SOON)
    client.stop()
    runner.join(SOON)
    assert outcome == [False]
    with client.queue(topic, group=group) as other:
        job = other.receive(SOON)
        assert job is not None
        assert job.deliveries == 2
    go_on.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_gracefully(client: Client, topic: str, group: str, number: signal.Signals) -> None:
    fill(client, topic, 1)
    done: list[str] = []
    before = signal.getsignal(number)

    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        os.kill(os.getpid(), number)
        done.append(job.text())

    assert client.run()
    assert done == ["0"]
    assert signal.getsignal(number) is before
    assert client.admin.queue(group).undone == 0


def test_invalid_workers_are_refused_with_the_reason(client: Client, group: str) -> None:
    with pytest.raises(ClientError, match=r"@client\.worker"):
        client.run()

    @client.worker("no-such-topic", group=group)
    def handle(job: Job) -> None:
        raise AssertionError

    with pytest.raises(Denied, match="no-such-topic"):
        client.run(signals=False)


def test_a_handler_may_settle_the_job_itself(
    client: Client, topic: str, group: str, unique: Callable[[str], str]
) -> None:
    fill(client, topic, 2)
    seen: list[tuple[str, int]] = []

    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        seen.append((job.text(), job.deliveries))
        if job.deliveries == 1 and job.text() == "0":
            job.retry(delay=0)
        elif len(seen) == 3:
            client.stop()

    assert client.run(signals=False)
    assert sorted(seen) == [("0", 1), ("0", 2), ("1", 1)]


def test_closing_the_client_ends_its_workers(client: Client, topic: str, group: str) -> None:
    fill(client, topic, 1)
    begun = threading.Event()

    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        begun.set()

    runner = threading.Thread(target=lambda: client.run(signals=False))
    runner.start()
    assert begun.wait(SOON)
    client.close()
    runner.join(SOON)
    assert not runner.is_alive()


def test_stopping_before_the_run_takes_effect(client: Client, topic: str, group: str) -> None:
    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        raise AssertionError

    client.stop()
    assert client.run(signals=False)


def test_a_handler_that_exits_ends_the_run_and_returns_its_jobs(
    client: Client, topic: str, group: str
) -> None:
    fill(client, topic, 1)

    @client.worker(topic, group=group)
    def handle(job: Job) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as exit_:
        client.run(signals=False)
    assert exit_.value.code == 3
    with client.queue(topic, group=group) as other:
        job = other.receive(SOON)
        assert job is not None
        assert job.deliveries > 1
