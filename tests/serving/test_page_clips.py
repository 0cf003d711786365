"""Clips of a voice that a visitor records or chooses: only the last one that was wanted is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from serving.browser import Browser, visit
from serving.page_server import ENGINE, PageServer, page_server

UPLOADS = {"consent": "asserted", "clip_min_s": 1, "clip_max_s": 30}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with pytest.MonkeyPatch.context() as patch, page_server() as served:
        patch.setitem(ENGINE, "uploads", UPLOADS)
        yield served


def test_a_recording_that_was_cancelled_is_no_clip_of_the_next_voice(server: PageServer, browser: Browser) -> None:
    with visit(browser, server.url()) as visitor:
        page, clip = visitor.page, visitor.page.get_by_role("group", name="A clip of the voice")
        page.get_by_role("button", name="Add a voice").click()
        clip.get_by_role("button", name="Record").click()
        visitor.wait(lambda: "Recording" in clip.get_by_role("status").inner_text())
        page.wait_for_timeout(300)
        page.get_by_role("button", name="Cancel").last.click()
        page.get_by_role("button", name="Add a voice").click()
        page.wait_for_timeout(500)  # in which a recording would be read in the background
        assert clip.get_by_role("status").inner_text() == ""
        assert clip.locator("button").inner_text() == "Record"
        page.get_by_label("Name", exact=True).fill("Anna")
        page.get_by_label("I am the speaker").check()
        page.get_by_role("button", name="Add", exact=True).click()
        visitor.wait(lambda: "a clip of the voice first" in visitor.text("#voice-problem"))


def test_who_clicks_twice_is_recorded_once(server: PageServer, browser: Browser) -> None:
    with visit(browser, server.url()) as visitor:
        page, clip = visitor.page, visitor.page.get_by_role("group", name="A clip of the voice")
        page.evaluate("""() => {
            const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
            window.inputs = [];  // a visitor takes a while to allow it
            navigator.mediaDevices.getUserMedia = async (wish) => {
                await new Promise((wake) => setTimeout(wake, 300));
                const input = await ask(wish);
                inputs.push(input.getTracks()[0]);
                return input;
            };
        }""")
        page.get_by_role("button", name="Add a voice").click()
        clip.locator("button").dblclick()
        visitor.wait(lambda: page.evaluate("inputs.map((track) => track.readyState)") == ["ended", "live"])
        page.wait_for_timeout(300)
        clip.get_by_role("button", name="Stop recording").click()
        visitor.wait(lambda: "of sound" in clip.get_by_role("status").inner_text())
        assert page.evaluate("inputs.map((track) => track.readyState)") == ["ended", "ended"]


def test_a_server_that_comes_back_with_other_rules_for_uploads_is_asked_by_those(
    server: PageServer, browser: Browser
) -> None:
    with pytest.MonkeyPatch.context() as patch, visit(browser, server.url()) as visitor:
        page = visitor.page
        patch.setattr(server, "missing", "/v1/engine/stats")
        visitor.wait(lambda: "as asked" in visitor.text("#engine-trouble"))
        patch.setitem(ENGINE, "model", "another")
        patch.setitem(ENGINE, "uploads", {"consent": "required", "clip_min_s": 3, "clip_max_s": 20})
        patch.setattr(server, "missing", "")
        visitor.wait(lambda: visitor.text("#model") == "another on cpu")
        page.get_by_role("button", name="Add a voice").click()
        assert "3 to 20 seconds" in visitor.text("#clip-hint")
        assert page.get_by_role("group", name="The speaker’s consent, recorded").is_visible()
        clip = page.get_by_role("group", name="A clip of the voice")
        clip.get_by_role("button", name="Record").click()
        visitor.wait(lambda: "for 20 s at most" in clip.get_by_role("status").inner_text())


def test_of_two_files_the_last_one_is_taken_however_long_the_first_is(
    server: PageServer, browser: Browser, tmp_path: Path
) -> None:
    for name, length_s in (("long.wav", 600), ("short.wav", 2)):
        soundfile.write(tmp_path / name, np.zeros(length_s * 16_000, np.int16), 16_000)
    with visit(browser, server.url()) as visitor:
        page, clip = visitor.page, visitor.page.get_by_role("group", name="A clip of the voice")
        page.get_by_role("button", name="Add a voice").click()
        for name in ("long.wav", "short.wav"):
            page.set_input_files("#clip-file", tmp_path / name)
        visitor.wait(lambda: "short.wav" in clip.get_by_role("status").inner_text())
        page.wait_for_timeout(1500)  # in which the long file is read
        assert clip.get_by_role("status").inner_text() == "short.wav: 2.00 s of sound."
