"""The web service of the examples, under kill -9 of its workers and of its broker: every accepted order is charged, and
retention takes none."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.faults.waiting import eventually
from tests.ports import free_ports

FOLDER = Path(__file__).parents[2] / "examples" / "web_service"
PATIENCE_SECONDS = 120.0
ORDERS = 90
SHORT_RETENTION = """
[topic_defaults]
"retention.ms" = 1000
"""


class Shop:
    """The broker, the web server and the workers, each a process of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._kafka, self._http, web = free_ports(3)
        self._web = web
        self.url = f"http://127.0.0.1:{web}"
        self.environment = {
            **os.environ,
            "PENSTOCK_BOOTSTRAP": f"127.0.0.1:{self._kafka}",
            "SHOP_DATABASE": str(folder / "shop.sqlite"),
            "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
        }
        (folder / "penstock.toml").write_text(SHORT_RETENTION)

    def start(self, *command: str, **more: str) -> subprocess.Popen[bytes]:
        environment = {**self.environment, **more}
        log = self._stack.enter_context((self._folder / "log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, cwd=self._folder, stdout=log, stderr=log
        )
        self._stack.callback(end, process)
        return process

    def start_broker(self) -> subprocess.Popen[bytes]:
        process = self.start(
            "penstock.cli", "serve", "--data-dir", "data", "--config", "penstock.toml",
            "--kafka", f"127.0.0.1:{self._kafka}", "--http", f"127.0.0.1:{self._http}",
        )  # fmt: skip
        eventually(
            lambda: answers(f"http://127.0.0.1:{self._http}/ready"), "the broker is ready", PATIENCE_SECONDS
        )
        return process

    def start_web_server(self, **more: str) -> subprocess.Popen[bytes]:
        process = self.start("uvicorn", "app:app", "--port", str(self._web), **more)
        eventually(lambda: answers(f"{self.url}/openapi.json"), "the web server is ready", PATIENCE_SECONDS)
        return process

    def holds_orders_back(self) -> bool:
        """Whether retention has met orders that it would delete if they were charged."""
        metrics = httpx.get(f"http://127.0.0.1:{self._http}/metrics").text
        name = "penstock_retention_held_back_records{"
        return any(line.startswith(name) and float(line.split()[-1]) > 0 for line in metrics.splitlines())

    def charged(self) -> dict[str, int]:
        """How often each order was charged."""
        with sqlite3.connect(self.environment["SHOP_DATABASE"], timeout=30) as rows:
            return dict(rows.execute("SELECT id, times FROM charged"))


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it started, whatever state a failed test has left them in."""
    if process.poll() is None:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            one.kill()
        process.wait()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(tmp_path, stack)


@contextmanager
def ordering(shop: Shop) -> Iterator[list[str]]:
    """Sends orders from a thread, each until it is accepted; yields those that are."""
    accepted: list[str] = []

    def send_all() -> None:
        with httpx.Client(base_url=shop.url, timeout=30) as web:
            for number in range(ORDERS):
                send_until_accepted(web, f"order-{number}")
                accepted.append(f"order-{number}")

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send_all)
        yield accepted
        sent.result(PATIENCE_SECONDS)


def send_until_accepted(web: httpx.Client, order_id: str) -> None:
    pause = threading.Event()
    while True:
        try:
            answer = web.post("/orders", json={"id": order_id, "cents": 100})
        except httpx.HTTPError:
            pause.wait(0.1)
            continue
        if answer.status_code == 202:
            return
        assert answer.status_code == 503, answer.text
        pause.wait(0.1)


def test_every_accepted_order_is_charged_through_kill_9_of_workers_and_broker(shop: Shop) -> None:
    broker = shop.start_broker()
    web = shop.start_web_server()
    workers = shop.start("penstock.cli", "worker", "jobs:client", "--processes", "2")
    with ordering(shop) as accepted:
        eventually(lambda: len(accepted) >= ORDERS // 6, "some orders are accepted", PATIENCE_SECONDS)
        eventually(lambda: shop.charged(), "an order is charged", PATIENCE_SECONDS)
        [victim, *_] = psutil.Process(workers.pid).children()
        victim.kill()
        eventually(lambda: len(accepted) >= ORDERS // 3, "more orders are accepted", PATIENCE_SECONDS)
        broker.kill()
        broker.wait()
        broker = shop.start_broker()
    eventually(lambda: len(shop.charged()) == ORDERS, "all orders are charged", PATIENCE_SECONDS)
    assert set(shop.charged()) == set(accepted)
    assert workers.poll() is None, "the supervisor outlives its workers"
    for process in (workers, web, broker):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)


def test_orders_wait_beyond_the_retention_of_their_topic_until_there_is_a_worker(shop: Shop) -> None:
    """Also with the workers inside the web server, which SIGTERM ends as usual."""
    shop.start_broker()
    web = shop.start_web_server()
    with ordering(shop) as accepted:
        pass
    web.send_signal(signal.SIGTERM)
    assert web.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)
    assert shop.charged() == {}
    eventually(shop.holds_orders_back, "retention would delete orders, and does not", PATIENCE_SECONDS)
    inside = shop.start_web_server(SHOP_WORKERS_INSIDE="1")
    eventually(lambda: len(shop.charged()) == ORDERS, "all orders are charged", PATIENCE_SECONDS)
    assert set(shop.charged()) == set(accepted)
    inside.send_signal(signal.SIGTERM)
    assert inside.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)
