"""What the page's visitor fills in is checked, sent once, and shown as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import serving.page_server as page_server_module
from serving.browser import Browser, visit
from serving.page_server import ENGINE, VOICES, PageServer, page_server, tone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with page_server() as served:
        yield served


def test_a_number_that_is_wrong_is_shown_though_it_is_folded_away(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.1)]
    asked = len(server.bodies)
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        page.get_by_text("More", exact=True).click()
        page.get_by_label("Temperature").fill("3")
        page.get_by_text("More", exact=True).click()
        page.get_by_role("button", name="Speak", exact=True).click()
        visitor.wait(lambda: page.evaluate("document.activeElement.id") == "temperature")
        assert page.get_by_label("Temperature").is_visible() and len(server.bodies) == asked
        page.get_by_label("Temperature").fill("0.33")  # valid
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert server.bodies[-1]["temperature"] == 0.33


def test_a_key_that_is_held_asks_once(server: PageServer, browser: Browser) -> None:
    server.script = [0.3, tone(0.1)]
    asked = len(server.bodies)
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        page.get_by_label("What should it say?").focus()
        page.keyboard.down("Control")
        for _ in range(10):
            page.keyboard.down("Enter")
        page.keyboard.up("Enter")
        page.keyboard.up("Control")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert len(server.bodies) == asked + 1


def test_what_a_browser_kept_of_the_form_is_what_is_shown_and_done(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.3)]
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        kept = "speed.value = 2, volume.value = 0"  # as Firefox restores a form, before any script of the page runs
        page.add_init_script(f"document.onreadystatechange = () => {{ {kept}; document.onreadystatechange = null; }}")
        page.reload()
        visitor.wait(lambda: page.locator("#ready-mark.ready").count() == 1)
        assert page.text_content("#speed-shown") == "2.00 ×"
        assert page.get_by_label("Volume").get_attribute("aria-valuetext") == "0 %"
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert server.bodies[-1]["speed"] == 2 and visitor.player("peak") == "0.0000"


def test_a_long_name_stays_within_a_narrow_screen(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.1)]
    name = "W" * 64  # the longest that a voice's name may be
    with pytest.MonkeyPatch.context() as patch, visit(browser, server.url(), width=320) as visitor:
        page = visitor.page
        patch.setitem(VOICES[0], "name", name)
        page.reload()
        visitor.wait(lambda: page.locator("#voice option").first.inner_text() == name)
        visitor.say("hello")
        visitor.wait(lambda: name in visitor.text("#said"))
        patch.setattr(server, "missing", "/v1/audio/speech")
        patch.setattr(server, "trouble", f"no voice; there is {name}")
        visitor.say("hello")
        visitor.wait(lambda: name in visitor.text("#problem"))
        assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_a_server_that_comes_back_with_another_model_is_asked_for_its_voices(
    server: PageServer, browser: Browser
) -> None:
    server.script = [tone(0.2), ConnectionError("as asked")]
    with pytest.MonkeyPatch.context() as patch, visit(browser, server.url()) as visitor:
        page = visitor.page
        page.get_by_label("Voice", exact=True).select_option("b")
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "failed")
        patch.setattr(server, "missing", "/v1/engine/stats")
        visitor.wait(lambda: "as asked" in visitor.text("#engine-trouble"))
        patch.setitem(ENGINE, "model", "another")
        patch.setattr(page_server_module, "VOICES", [{"id": "c", "name": "c", "kind": "own"}, *VOICES[1:]])
        patch.setattr(server, "missing", "")
        visitor.wait(lambda: visitor.text("#model") == "another on cpu")
        assert page.locator("#voice option").all_inner_texts() == ["c", "b"]
        assert page.input_value("#voice") == "b" and "broke off" in visitor.text("#problem")  # which is still so


def test_a_text_that_runs_from_right_to_left_is_shown_so(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.1)]
    with visit(browser, server.url()) as visitor:
        text = visitor.page.get_by_label("What should it say?")
        assert text.evaluate("e => e.matches(':dir(ltr)')")
        visitor.say("שלום, עולם.")
        assert text.evaluate("e => e.matches(':dir(rtl)')")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.page.locator("#said .words").evaluate("e => e.matches(':dir(rtl)')")
