"""Shared by all tests: brokers in this process, on free ports of 127.0.0.1."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4
from zlib import crc32

import httpx
import pytest
import websockets.asyncio.client
import websockets.sync.client
from hypothesis import HealthCheck, settings

from penstock import Broker
from penstock.client import admin, topic_cache

# How long an example takes says nothing on a machine that does other things too.
# Thirty examples each, unless a test says otherwise: there are hundreds of such tests, and they run often.
settings.register_profile(
    "penstock", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("penstock")

# A shell starts background jobs with SIGINT ignored, and processes inherit that. Tests interrupt themselves and
# the processes that they start, so `make test &` needs Python's own handler as much as `make test` does.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Brokers that tests start as processes: consumers should not wait three seconds for more members.
os.environ["PENSTOCK_GROUPS_INITIAL_REBALANCE_DELAY_MS"] = "0"

# Requests of tests wait as long as everything else in them. By default they fail after 5 seconds.
_timeouts = httpx._config.DEFAULT_TIMEOUT_CONFIG
_timeouts.connect = _timeouts.read = _timeouts.write = _timeouts.pool = 60.0

# The same for WebSockets, which have 10 seconds to open by default.
for _connect in (websockets.sync.client.connect, websockets.asyncio.client.connect.__init__):
    assert _connect.__kwdefaults__["open_timeout"] == 10
    _connect.__kwdefaults__["open_timeout"] = 60

# The same for a client's first answer from its broker. Tests of clients that get none use `gives_up_soon`.
for _module in (topic_cache, admin):
    setattr(_module, "FIRST_SECONDS", 60.0)  # noqa: B010 - mypy knows it as a constant

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start clusters of processes run in one worker, one after the other. (Tests of Spark have two groups:
    one shares a session, the other starts JVMs.)

    Files run in an order that mixes packages, the same in every worker and every run: some packages mostly wait and
    others mostly compute, and side by side they fill both cores."""
    items.sort(key=lambda item: crc32(item.path.relative_to(HERE).as_posix().encode()))
    for item in items:
        if HERE / "faults" in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("faults"))


def pytest_collection_finish() -> None:
    """The tests and their modules, 400,000 objects, live as long as the process. Python no longer looks at them when it
    searches for garbage: each time, that stopped all threads of a test for a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without lines that depend on how busy the machine is: the brokers of this process, among them one that tests
    share, say when their event loops were held. The watchdog's own tests have these lines."""
    caplog.handler.addFilter(_is_of_the_test)
    yield caplog
    caplog.handler.removeFilter(_is_of_the_test)


def _is_of_the_test(record: logging.LogRecord) -> bool:
    return "the event loop was held" not in record.getMessage()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One in-memory broker that tests share: each uses topics and groups of its own."""
    with Broker() as running:
        yield running


@pytest.fixture
def disk_broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        yield running


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses."""
    return lambda prefix: f"{prefix}-{uuid4().hex[:10]}"


@pytest.fixture
def gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never gets an answer says so after the time that users wait for it."""
    monkeypatch.setattr(topic_cache, "FIRST_SECONDS", 5.0)
    monkeypatch.setattr(admin, "FIRST_SECONDS", 5.0)
