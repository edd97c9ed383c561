"""The web console with 1,000 topics and 50 groups: `make bench-console`.

    first page    from the click to the first row on the screen, in a browser that has nothing of the console in its
                  cache; the median and the slowest of the runs
    CPU           of the node's process, as a share of one core: without a console, with an open overview, and with one
                  in a tab in the background, which must ask nothing

The node runs as `penstock serve` starts it, with its data on disk; the browser is chromium, on the same machine.
Goals: every first page below 1 s, an open overview below 2 % of a core, an idle console nothing.

    python benchmarks/console.py --topics 1000 --groups 50 --runs 5 --seconds 60 [--publish]
"""

import argparse
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import page as results_page
import psutil
from penstock_launcher import Penstock
from playwright.sync_api import Browser, Page, sync_playwright

import penstock

GOAL_S = 1.0
GOAL_CPU = 0.02
PATIENCE_S = 60
SETTLE_S = 10
"""A node that has just created a thousand topics still flushes and compacts."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
PAGES = {
    "Overview": ("", ".tile .value"),
    "Topics": ("topics", "tbody tr"),
    "A topic": ("topics/topic-0500", "tbody tr"),
    "Messages": ("topics/topic-0500/messages", "tbody tr"),
    "Groups": ("groups", "tbody tr"),
    "A group": ("groups/group-07", "tbody tr"),
    "Cluster": ("cluster", ".node"),
}
"""Their addresses, and what is on the screen when a reader can begin."""
WATCH = """
(() => {
  let isShown = false;
  const note = () => {
    if (isShown || !document.querySelector(SELECTOR)) return;
    isShown = true;
    const painted = () => document.documentElement.setAttribute("data-shown-ms", performance.now());
    requestAnimationFrame(() => setTimeout(painted));
  };
  new MutationObserver(note).observe(document, { childList: true, subtree: true });
})();
"""
REQUESTS = "until => performance.getEntriesByType('resource').filter(one => one.responseEnd <= until).length"
HIDE = """
Object.defineProperty(document, "visibilityState", { get: () => "hidden" });
document.dispatchEvent(new Event("visibilitychange"));
"""


class Shown(NamedTuple):
    median_s: float
    slowest_s: float
    requests: int


class Used(NamedTuple):
    share: float
    """Of one core."""
    requests: float
    """A minute."""


class Report(NamedTuple):
    pages: dict[str, Shown]
    alone: Used
    overview: Used
    hidden: Used

    @property
    def misses(self) -> list[str]:
        late = [
            f"{name} after {one.median_s:.2f} s" for name, one in self.pages.items() if one.median_s >= GOAL_S
        ]
        cost = self.overview.share - self.alone.share
        costly = [f"an open overview costs {cost:.1%} of a core"] if cost >= GOAL_CPU else []
        asking = (
            [f"a hidden tab asks {self.hidden.requests:.0f} times a minute"] if self.hidden.requests else []
        )
        return [*late, *costly, *asking]


# --- the node


@contextmanager
def serving(topics: int, groups: int) -> Iterator[tuple[psutil.Process, str]]:
    """The node's process, and the console's address."""
    with tempfile.TemporaryDirectory() as folder:
        node = Penstock(Path(folder), "--set", "status_topic=")
        node.start()
        try:
            url = _console_url(Path(folder, "penstock.log"))
            _fill(url.removesuffix("/console/"), topics, groups)
            time.sleep(SETTLE_S)
            yield psutil.Process(node.pid), url
        finally:
            node.stop()


def _console_url(log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := re.search(r"http://\S+/console/", log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise SystemExit(f"the node has not said where its console is: {log.read_text()[-500:]}")


def _fill(url: str, topics: int, groups: int) -> None:
    with httpx.Client(base_url=f"{url}/v1/", timeout=PATIENCE_S) as http:
        for number in range(topics):
            name = f"topic-{number:04d}"
            http.post("topics", json={"name": name, "partitions": 2}).raise_for_status()
            records = [{"key": f"k{each}", "value": {"id": each, "name": name}} for each in range(10)]
            http.post(f"topics/{name}/records", json={"records": records}).raise_for_status()
        for number in range(groups):
            for topic in range(number, topics, max(1, topics // 10)):
                moved = {"topic": f"topic-{topic:04d}", "to": "earliest"}
                http.post(f"groups/group-{number:02d}/offsets", json=moved).raise_for_status()


# --- pages


def first_pages(browser: Browser, url: str, runs: int) -> dict[str, Shown]:
    """In turns, so that a busy moment does not hit one page alone."""
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in PAGES}
    for _ in range(runs):
        for name, (address, selector) in PAGES.items():
            found[name].append(_first_page(browser, url + address, selector))
    return {
        name: Shown(median(took for took, _ in each), max(took for took, _ in each), each[-1][1])
        for name, each in found.items()
    }


def _first_page(browser: Browser, url: str, selector: str) -> tuple[float, int]:
    """Seconds until it is shown, and the requests until then."""
    with opened(browser) as (page, _):
        page.add_init_script(WATCH.replace("SELECTOR", repr(selector)))
        page.goto(url, wait_until="commit")
        page.wait_for_selector("html[data-shown-ms]", state="attached", timeout=PATIENCE_S * 1000)
        shown_ms = page.locator("html").get_attribute("data-shown-ms")
        assert shown_ms is not None
        return float(shown_ms) / 1000, page.evaluate(REQUESTS, float(shown_ms))


@contextmanager
def opened(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """A page in a profile of its own, and the requests that it makes."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        requests: list[str] = []
        page.on("request", lambda one: requests.append(one.url))
        yield page, requests
    finally:
        context.close()


# --- CPU


def used(process: psutil.Process, seconds: float, requests: list[str], page: Page | None = None) -> Used:
    asked, before = len(requests), _cpu_s(process)
    if page is None:
        time.sleep(seconds)
    else:
        page.wait_for_timeout(seconds * 1000)  # Playwright hears of requests only while it waits
    return Used((_cpu_s(process) - before) / seconds, (len(requests) - asked) * 60 / seconds)


def _cpu_s(process: psutil.Process) -> float:
    times: Any = process.cpu_times()
    return float(times.user + times.system)


def measure(topics: int, groups: int, runs: int, seconds: float) -> Report:
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    with serving(topics, groups) as (process, url), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        pages = first_pages(browser, url, runs)
        alone = used(process, seconds, [])
        with opened(browser) as (page, requests):
            page.goto(url)
            page.wait_for_selector(PAGES["Overview"][1])
            page.wait_for_timeout(SETTLE_S * 1000)
            overview = used(process, seconds, requests, page)
            page.evaluate(HIDE)
            page.wait_for_timeout(SETTLE_S * 1000)  # what was under way ends
            hidden = used(process, seconds, requests, page)
        browser.close()
    return Report(pages, alone, overview, hidden)


def table(report: Report, topics: int, groups: int, runs: int) -> str:
    rows = [
        f"Penstock {penstock.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"which the browser shares with the node; {topics:,} topics, {groups} groups, the median of {runs} runs.",
        "",
        "| first page | shown after | slowest | requests until then |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {one.median_s:.2f} s | {one.slowest_s:.2f} s | {one.requests} |"
            for name, one in report.pages.items()
        ),
        "",
        "| CPU of the node | share of a core | requests a minute |",
        "|---|---:|---:|",
    ]
    for name, one in (
        ("no console", report.alone),
        ("an open overview", report.overview),
        ("an overview in a hidden tab", report.hidden),
    ):
        rows.append(f"| {name} | {one.share:.2%} | {one.requests:.0f} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    asked = parser.parse_args()
    report = measure(asked.topics, asked.groups, asked.runs, asked.seconds)
    text = table(report, asked.topics, asked.groups, asked.runs)
    print(text)
    for miss in report.misses:
        print(f"MISSED: {miss}")
    if asked.publish:
        results_page.publish("bench-console", text)


if __name__ == "__main__":
    main()
