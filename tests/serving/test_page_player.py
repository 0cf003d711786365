"""The page's player in a real browser: over plain HTTP too, with slow sound, and when the visitor operates it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving.browser import LAN_NAME, Browser, Visitor, visit
from serving.conftest import wait_for
from serving.page_server import RATE_HZ, SEED, PageServer, page_server, tone

HOSTS = ("127.0.0.1", LAN_NAME)  # with an AudioWorklet, and without

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with page_server() as served:
        yield served


def press(visitor: Visitor, name: str) -> None:
    visitor.page.get_by_role("button", name=name, exact=True).click()


def played(visitor: Visitor) -> int:
    return int(visitor.player("played"))


@pytest.mark.parametrize("host", HOSTS)
def test_a_gap_is_counted_once_and_no_sample_is_lost(server: PageServer, browser: Browser, host: str) -> None:
    piece = tone(0.2)
    server.script = [piece, 0.7, piece, piece, piece, piece, piece[:3333], 0.1, piece[3333:]]  # cut within a sample
    with visit(browser, server.url(host)) as visitor:
        assert visitor.page.evaluate("isSecureContext && 'AudioWorkletNode' in window") is (host != LAN_NAME)
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.player("gaps") == "1" and played(visitor) == 6 * 4800
        assert 0.4 < float(visitor.player("peak")) < 0.6
        assert "40 GiB" in visitor.text("#tiles") and "50 %" in visitor.text("#tiles")  # shown if there is a GPU
        assert "1 gap" in visitor.text("#status") and visitor.page.get_by_text("a gap that was heard").is_visible()


def test_a_connection_that_breaks_off_is_told_apart_from_an_end(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.2), 0.3, ConnectionError("as asked")]
    with visit(browser, server.url()) as visitor:
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "failed")
        assert "not the whole text" in visitor.page.get_by_role("alert").first.inner_text()


@pytest.mark.parametrize("host", [pytest.param(HOSTS[0], marks=pytest.mark.long), *HOSTS[1:]])
def test_a_slow_server_is_waited_for_once(server: PageServer, browser: Browser, host: str) -> None:
    server.script = [tone(0.15), *(part for _ in range(13) for part in (0.25, tone(0.15)))]  # 2.1 s of sound in 3.3 s
    with visit(browser, server.url(host)) as visitor:
        visitor.say("thirty letters, of two seconds")
        visitor.wait(lambda: "Buffering, about" in visitor.text("#status"))
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.player("gaps") == "1" and played(visitor) == 14 * 3600
        visitor.say("thirty letters, of two seconds")  # the server is known to be slow now, so buffering comes first
        visitor.wait(lambda: visitor.player("state") == "buffering")
        assert played(visitor) == 0
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.player("gaps") == "0" and played(visitor) == 14 * 3600


@pytest.mark.parametrize("host", HOSTS)
def test_pause_seek_and_volume(server: PageServer, browser: Browser, host: str) -> None:
    server.script = [tone(3.0)]
    with visit(browser, server.url(host)) as visitor:
        page, end = visitor.page, 3 * RATE_HZ
        page.get_by_label("Volume").press("Home")
        visitor.say("hello")
        visitor.wait(lambda: played(visitor) > 2400)
        press(visitor, "Pause")
        visitor.wait(lambda: visitor.player("state") == "paused" and "Paused at 0:00" in visitor.text("#status"))
        page.wait_for_timeout(100)
        held = played(visitor)
        page.wait_for_timeout(200)
        assert played(visitor) == held < end // 2
        page.get_by_label("Where in the sound").press("ArrowRight")
        visitor.wait(lambda: played(visitor) == held + 2 * RATE_HZ and visitor.text("#time") == "0:02 / 0:03")
        press(visitor, "Play")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert played(visitor) == end and visitor.player("gaps") == "0" and visitor.player("peak") == "0.0000"
        page.get_by_label("Volume").press("End")
        box = page.locator("#waveform").bounding_box()
        assert box is not None
        page.locator("#waveform").click(position={"x": 0.75 * box["width"], "y": 20})
        visitor.wait(lambda: visitor.player("state") == "paused" and abs(played(visitor) - 0.75 * end) < 480)
        page.get_by_label("Where in the sound").press("ArrowRight")  # no further than the sound that has come
        visitor.wait(lambda: played(visitor) == end)
        page.get_by_label("Where in the sound").press("PageDown")
        press(visitor, "Play")
        visitor.wait(lambda: 0 < played(visitor) < end // 2 and float(visitor.player("peak")) > 0.4)
        press(visitor, "Stop")
        assert visitor.player("state") == "stopped" and len(server.bodies) >= 1


def test_on_a_phone_the_player_comes_into_view_and_speak_stops(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.5), *(part for _ in range(40) for part in (0.2, tone(0.2)))]
    in_view = "document.getElementById('transport').getBoundingClientRect().bottom <= innerHeight"
    with visit(browser, server.url(), width=360) as visitor:
        page = visitor.page
        assert not page.evaluate(in_view)
        press(visitor, "Speak")
        visitor.wait(lambda: page.evaluate(f"{in_view} && document.getElementById('status').offsetTop >= scrollY"))
        speak = page.locator("#speak")
        assert speak.inner_text() == "Stop speaking" and speak.get_attribute("aria-busy") == "true"
        visitor.wait(lambda: visitor.player("state") == "speaking")
        assert server.speaking == 1
        page.get_by_label("What should it say?").fill("")  # an empty text, which could not be spoken
        press(visitor, "Stop speaking")
        wait_for(lambda: server.speaking == 0)
        assert visitor.player("state") == "stopped"
        assert speak.inner_text() == "Speak" and speak.get_attribute("aria-busy") == "false"


def test_a_text_that_is_too_long_is_kept_and_not_sent(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.1)]
    asked = len(server.bodies)
    with visit(browser, server.url()) as visitor:
        text = visitor.page.get_by_label("What should it say?")
        visitor.say("🙂" * 1000 + "more")  # each counts as one character, though JavaScript counts two
        assert "4 characters too many" in visitor.text("#too-long") and "1,004 of 1,000" in visitor.text("#count")
        assert visitor.page.get_by_role("button", name="Speak", exact=True).is_disabled()
        assert text.input_value().endswith("more") and text.get_attribute("aria-invalid") == "true"
        assert len(server.bodies) == asked and visitor.player("state") == "idle"
        visitor.say("🙂" * 1000)
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.text("#too-long") == "" and server.bodies[-1]["input"] == "🙂" * 1000


def test_what_was_said_is_heard_again_without_asking_anew(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.3), 0.5]  # the connection closes late, which is no gap
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        assert not page.locator("#history").is_visible()
        for voice, text in (("a", "first words"), ("b", "second words")):
            page.get_by_label("Voice", exact=True).select_option(voice)
            visitor.say(text)
            visitor.wait(lambda text=text: visitor.player("state") == "done" and text in visitor.text("#said"))
            assert visitor.player("gaps") == "0"
        newest, oldest = page.locator("#said li").all()
        assert "b, 0:00" in newest.inner_text() and "first words" in oldest.inner_text()
        asked = len(server.bodies)
        press(visitor, "Play: first words")
        visitor.wait(lambda: visitor.player("state") == "speaking")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert len(server.bodies) == asked and page.locator("#said li").count() == 2
        with page.expect_download() as download:
            press(visitor, "Save as WAV: first words")
        assert download.value.suggested_filename == "first-words.wav"
        assert download.value.path().read_bytes()[44:] == tone(0.3)
        with page.expect_download() as download:
            press(visitor, "Save as MP3: first words")
        assert download.value.suggested_filename == "first-words.mp3"
        wanted = {"input": "first words", "voice": "a", "response_format": "mp3", "seed": int(SEED)}
        assert server.bodies[-1] == wanted and len(server.bodies) == asked + 1
        server.script = [tone(0.3), 0.1, ConnectionError("as asked")]
        press(visitor, "Save as MP3: first words")
        visitor.wait(lambda: "before the file was whole" in visitor.text("#problem"))


def test_a_voice_is_described_and_heard_before_it_is_used(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.2)]
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        assert "Comes with the model; speaks English." in visitor.text("#about-voice")
        assert not page.get_by_label("How to say it").is_visible()  # the engine does not take it
        page.get_by_label("Voice", exact=True).select_option("b")
        asked = len(server.bodies)
        for _ in range(2):
            press(visitor, "Hear this voice")
            visitor.wait(lambda: visitor.player("state") == "speaking")
            visitor.wait(lambda: visitor.player("state") == "done")
        assert len(server.bodies) == asked + 1 and server.bodies[-1]["voice"] == "b"
        assert len(server.bodies[-1]["input"]) < 80 and not page.locator("#history").is_visible()
        server.script = [tone(0.3), 1.0, tone(0.3)]
        page.get_by_label("Voice", exact=True).select_option("a")
        for _ in range(2):  # the second time while the first still speaks
            press(visitor, "Hear this voice")
            visitor.wait(lambda: visitor.player("state") == "speaking" and played(visitor) > 0)
        press(visitor, "Stop")
        assert len(server.bodies) == asked + 3 and not page.locator("#history").is_visible()


def test_every_figure_is_explained_and_every_control_has_a_name(server: PageServer, browser: Browser) -> None:
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        for summary in page.get_by_text("What these figures mean").all():
            summary.press("Enter")
        for part, names in (("#engine", "#tiles dt"), ("#player", "#figures dt")):
            explained = page.locator(f"{part} .meanings dt").all_inner_texts()
            assert set(page.locator(names).all_inner_texts()) <= set(explained)
            assert all(len(words) > 20 for words in page.locator(f"{part} .meanings dd").all_inner_texts())
        words = visitor.text("#meanings")
        assert all(word in words for word in ("Real-time factor", "TTFP", "Batch rows", "KV blocks"))
        nameless = """() => [...document.querySelectorAll("button, input, select, textarea")].filter(
            (e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim())).map((e) => e.id)"""
        assert page.evaluate(nameless) == []


def test_a_server_that_was_away_at_the_first_word_speaks_when_it_is_back(server: PageServer, browser: Browser) -> None:
    server.script = [tone(0.2)]
    with visit(browser, server.url()) as visitor:
        server.missing = "/page/playback_worklet.js"  # which is loaded when it is first needed
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "failed")
        assert "cannot be reached" in visitor.text("#problem")
        visitor.wait(lambda: visitor.page.locator("#play").is_enabled())  # what was to be said has come
        for name in ("Play again", "Play: hello"):  # of the player, and in the list of what was said so far
            visitor.page.evaluate("document.getElementById('problem').textContent = ''")
            visitor.page.get_by_role("button", name=name).first.click()
            visitor.wait(lambda: "cannot be reached" in visitor.text("#problem"))
            assert visitor.player("state") == "failed"
        server.missing = ""
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "done" and played(visitor) == 4800)


def test_what_comes_to_its_end_while_it_is_paused_can_be_saved_and_is_not_asked_for_again(
    server: PageServer, browser: Browser
) -> None:
    server.script = [tone(3.0), 2.0, tone(1.0)]
    with visit(browser, server.url()) as visitor:
        speak = visitor.page.locator("#speak")
        visitor.say("hello")
        visitor.wait(lambda: played(visitor) > 0)
        press(visitor, "Pause")
        assert speak.inner_text() == "Stop speaking"
        visitor.wait(lambda: speak.inner_text() == "Speak" and speak.get_attribute("aria-busy") == "false")
        assert visitor.player("state") == "paused"
        assert visitor.page.get_by_role("button", name="Save as WAV", exact=True).is_enabled()
        assert visitor.page.get_by_role("button", name="Save as MP3", exact=True).is_enabled()


def test_a_hand_that_goes_back_to_where_it_began_lets_go_of_the_play_head(server: PageServer, browser: Browser) -> None:
    server.script = [tone(2.0)]
    with visit(browser, server.url()) as visitor:
        page = visitor.page
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "done")
        box = page.locator("#seek").bounding_box()
        assert box is not None
        end, y = box["x"] + box["width"] - 8, box["y"] + box["height"] / 2
        page.mouse.move(end, y)
        page.mouse.down()
        page.mouse.move(end - 100, y)
        visitor.wait(lambda: visitor.text("#time") != "0:02 / 0:02")
        page.mouse.move(end + 60, y)
        page.mouse.up()
        press(visitor, "Play again")
        visitor.wait(lambda: visitor.text("#time") == "0:01 / 0:02" and 1 < float(page.input_value("#seek")) < 2)
