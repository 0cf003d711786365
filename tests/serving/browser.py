"""A real browser for the page's tests, and a visitor who also notes the errors that the page does not show."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright: pip install '.[dev]'")
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LAN_NAME = "sonant.test"  # this machine, but not to the browser: over plain HTTP it is no secure context
MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")  # a fake one that beeps


def launch(playwright: Playwright) -> Browser:
    """Launch Playwright's own Chromium, else the system's; skip the test if there is neither."""
    own = playwright.chromium.executable_path
    found = own if os.path.exists(own) else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no browser: run `playwright install chromium`, or install your system's chromium package")
    return playwright.chromium.launch(
        executable_path=found,
        args=[
            *MICROPHONE,
            "--autoplay-policy=user-gesture-required",
            f"--host-resolver-rules=MAP {LAN_NAME} 127.0.0.1",
        ],
    )


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@dataclass
class Visitor:
    page: Page
    errors: list[str] = field(default_factory=list)  # the page's own, without those of the server's answers
    addresses: list[str] = field(default_factory=list)

    def player(self, name: str) -> str:
        return self.page.get_attribute("#player", f"data-{name}") or ""

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def wait(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until it is true. The page's policy forbids Playwright's own wait for a function, as it should."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not come about; {self.errors}; {self.text('#problem')!r}"
            self.page.wait_for_timeout(20)

    def say(self, text: str, seed: str = "") -> None:
        """Enter and speak the text with the keyboard alone."""
        self.page.get_by_label("What should it say?").fill(text)
        if seed:
            self.page.get_by_text("More", exact=True).press("Enter")
            self.page.get_by_label("Seed", exact=True).fill(seed)
        self.page.keyboard.press("Control+Enter")


@contextmanager
def visit(browser: Browser, url: str, *, width: int = 1280, ready: bool = True) -> Iterator[Visitor]:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        visitor = Visitor(context.new_page())
        page = visitor.page
        page.on("pageerror", lambda error: visitor.errors.append(str(error)))
        page.on("console", lambda m: visitor.errors.append(m.text) if m.type == "error" and _ours(m.text) else None)
        page.on("request", lambda request: visitor.addresses.append(request.url))
        page.goto(url)
        if ready:
            visitor.wait(lambda: page.locator("#ready-mark.ready").count() == 1 and "on cpu" in visitor.text("#model"))
        yield visitor
        assert visitor.errors == []
        foreign = [
            a for a in visitor.addresses if urlsplit(a).netloc != urlsplit(url).netloc and not a.startswith("blob:")
        ]
        assert foreign == []


def _ours(error: str) -> bool:
    """Whether an error is the page's own.

    Chromium also logs a refused or broken request as an error, which the page tells in words that the tests look for,
    and a header that is ignored over plain HTTP, where that does no harm.
    """
    return "Failed to load" not in error and "Cross-Origin-Opener-Policy header has been ignored" not in error
