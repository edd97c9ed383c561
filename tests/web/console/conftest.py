"""The console in a real browser: Debian's chromium, driven by Playwright. The build without windows
(chromium-headless-shell) has the same engine and takes a quarter of the CPU, so it comes first where it is there.

The tests of this folder run in one worker process, because a browser takes a core while it starts. Each module has a
browser of its own: Playwright leaves an event loop in its thread, which tests of other modules must not find there.

PENSTOCK_SCREENSHOTS=docs/images/console makes the pictures of docs/console.md (`make screenshots`).
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from penstock import Broker

PATIENCE_MS = 60_000
"""The machine that runs tests may be busy."""
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PICTURES = os.environ.get("PENSTOCK_SCREENSHOTS")
HERE = Path(__file__).parent

expect.set_options(timeout=PATIENCE_MS)
OpenPage = Callable[..., Page]


class HasConsole(Protocol):
    """A broker, or a node of a cluster."""

    @property
    def console_url(self) -> str: ...


TakePicture = Callable[[Page, str], None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("console"))


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: `make setup` installs it where it can (apt-get install chromium)")
    running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE_MS)
    yield running
    running.close()


@pytest.fixture
def open_page(browser: Browser, broker: Broker) -> Iterator[OpenPage]:
    """Opens a page of the console in a browser profile of its own. The test fails in the end if the page had an error
    that it did not handle."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def make(
        path: str = "", *, at: HasConsole | None = None, width: int = 1280, theme: str = "light"
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if theme == "dark" else "light"
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: _note_violation(line.text, errors))
        page.goto((at or broker).console_url + path)
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []


def _note_violation(line: str, errors: list[str]) -> None:
    """A page that breaks its own Content-Security-Policy is a bug of the console."""
    if "Content Security Policy" in line or "Trusted Type" in line:
        errors.append(line)


@pytest.fixture
def take_picture() -> TakePicture:
    """Makes a picture for docs/console.md in both themes, if asked to."""

    def take(page: Page, name: str) -> None:
        if PICTURES is None:
            return
        folder = Path(PICTURES)
        folder.mkdir(parents=True, exist_ok=True)
        for theme in ("dark", "light"):
            page.evaluate("document.querySelector('.toasts')?.replaceChildren()")  # they cover the page
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.wait_for_timeout(200)  # the browser paints
            page.screenshot(path=folder / f"{name}-{theme}.png")

    return take


@pytest.fixture
def unique(unique: Callable[[str], str]) -> Callable[[str], str]:
    """Names that no other test uses; in pictures, names that people would give."""

    def number(prefix: str) -> str:
        _used[prefix] += 1
        return prefix if _used[prefix] == 1 else f"{prefix}-{_used[prefix]}"

    return unique if PICTURES is None else number


_used: Counter[str] = Counter()
