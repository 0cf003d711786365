"""The page in a real browser: what a visitor types is spoken, heard, measured and explained."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from serving.conftest import Serve, wait_for
from serving.test_voice_routes import upload, wav
from sonant.audio.pcm import pcm16
from sonant.serving.page.routes import page_routes
from sonant.types import Samples

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need playwright: pip install '.[dev]'"
)
from serving.browser import launch, visit  # noqa: E402

Browser = playwright_api.Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright_api.sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def same(samples: Samples, pcm: bytes) -> bool:
    """But for rounding, which follows the chunks' sizes, and they the clock."""
    expected = np.frombuffer(pcm, np.int16).astype(np.int32)
    return len(samples) == len(expected) and int(np.abs(samples - expected).max()) <= 2


def test_what_is_typed_is_spoken_heard_and_saved(serve: Serve, browser: Browser, tmp_path: Path) -> None:
    served = serve()
    body = {"input": "hello the world", "voice": "serena", "seed": 9_007_199_254_740_999, "response_format": "pcm"}
    samples = len(served.post(**body).content) // 2
    with visit(browser, served.url) as visitor:
        visitor.page.get_by_label("Voice", exact=True).select_option("serena")
        visitor.say("hello the world", seed="9007199254740999")  # not a number of JavaScript's
        visitor.wait(lambda: visitor.player("state") == "done")
        assert int(visitor.player("played")) == samples and float(visitor.player("peak")) > 0.001
        assert visitor.text("#first-byte").endswith("ms") and visitor.text("#first-sound").endswith("ms")
        assert float(visitor.text("#rtf")) > 0 and int(visitor.text("#pieces")) >= 1
        assert f"{samples / 24000:.2f} s of sound" in visitor.text("#status")
        with visitor.page.expect_download() as download:
            visitor.page.get_by_role("button", name="Save as WAV").click()
        download.value.save_as(tmp_path / "speech.wav")
        saved, rate = soundfile.read(tmp_path / "speech.wav", dtype="int16")
        assert rate == 24000 and same(saved, served.post(**body).content)
        measured = visitor.text("#figures")
        visitor.page.get_by_role("button", name="Play again").click()
        visitor.wait(lambda: visitor.player("state") == "speaking")
        visitor.wait(lambda: visitor.player("state") == "done" and int(visitor.player("played")) == samples)
        assert visitor.text("#figures").partition("Gaps")[0] == measured.partition("Gaps")[0]  # it was no request


def test_stopping_with_the_keyboard_frees_the_row(serve: Serve, browser: Browser) -> None:
    served = serve("endless")
    with visit(browser, served.url) as visitor:
        visitor.say("hello the world " * 15)
        visitor.wait(lambda: int(visitor.player("played")) > 4800)
        assert served.supervisor.engine.stats().running == 1
        visitor.wait(lambda: visitor.text("#tiles dd.large").strip() == "1")  # the panel saw it too
        visitor.page.keyboard.press("Escape")
        wait_for(lambda: served.supervisor.engine.stats().running == 0)
        assert visitor.player("state") == "stopped" and "Stopped after" in visitor.text("#status")
        visitor.say("hello", seed="3")  # and nothing of it is left in the way
        visitor.wait(lambda: visitor.player("state") == "speaking")
        visitor.page.get_by_role("button", name="Stop").click()
        wait_for(lambda: served.supervisor.engine.stats().running == 0)


def test_a_busy_server_is_explained_in_words(serve: Serve, browser: Browser) -> None:
    served = serve("endless", max_streams_per_client=1)
    body = {"input": "hello the world " * 15, "response_format": "pcm"}
    with visit(browser, served.url) as visitor:
        with httpx.stream("POST", f"{served.url}/v1/audio/speech", json=body) as other:
            pieces = other.iter_raw()
            next(pieces)
            visitor.say("hello")
            visitor.wait(lambda: visitor.player("state") == "failed")
        alert = visitor.page.get_by_role("alert").first.inner_text()
        assert "busy" in alert and "Try again in" in alert
        visitor.say("...")
        visitor.wait(lambda: "refused" in visitor.text("#problem"))


def test_the_key_is_asked_for_and_kept_in_the_tab_only(serve: Serve, browser: Browser) -> None:
    served = serve(api_keys=("secret-key",))
    with visit(browser, served.url, ready=False) as visitor:
        page = visitor.page
        page.get_by_label("API key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        visitor.wait(lambda: page.locator("dialog[open]").count() == 1 and page.input_value("#key") == "")
        page.get_by_label("API key", exact=True).fill("secret-key")
        page.keyboard.press("Enter")
        visitor.wait(lambda: "on cpu" in visitor.text("#model"))
        assert page.evaluate("Object.values(sessionStorage)") == ["secret-key"]
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        visitor.say("hello", seed="3")
        visitor.wait(lambda: visitor.player("state") == "done")
        for kind in ("curl", "Python", "JavaScript"):
            page.get_by_text(kind, exact=True).click()
            code = visitor.text("#snippet")
            assert "secret-key" not in code and ("SONANT_API_KEY" in code or "apiKey" in code)
        assert not any("secret-key" in address for address in visitor.addresses)


def test_a_server_that_is_loading_is_waited_for(serve: Serve, browser: Browser) -> None:
    served = serve()
    served.link.trouble = "loading"
    with visit(browser, served.url, ready=False) as visitor:
        visitor.wait(lambda: "Not ready: loading" in visitor.text("#engine-trouble"))
        assert "cannot speak just now" in visitor.text("#problem")
        served.link.trouble = None
        visitor.wait(lambda: "on cpu" in visitor.text("#model") and visitor.text("#problem") == "")


def test_the_code_it_shows_runs(
    serve: Serve, browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serve()
    text = 'It\'s "5" $HOME `x` \\n, said he.\nAnd <b>more</b> é 🙂'
    expected = served.post(input=text, voice="serena", seed=4, language="english", response_format="pcm").content
    with visit(browser, served.url) as visitor:
        page = visitor.page
        page.get_by_label("What should it say?").fill(text)
        page.get_by_label("Language", exact=True).select_option("english")
        page.get_by_text("More", exact=True).click()
        page.get_by_label("Seed", exact=True).fill("4")
        subprocess.run(
            ["bash", "-ec", page.text_content("#snippet") or ""], check=True, cwd=tmp_path, capture_output=True
        )
        samples, _ = soundfile.read(tmp_path / "speech.wav", dtype="int16")
        assert same(samples, expected)
        page.get_by_text("Python", exact=True).click()
        exec(compile(page.text_content("#snippet") or "", "snippet", "exec"), {})
        printed = capsys.readouterr().out.split()
        assert sum(int(n) for n in printed if n.isdecimal()) == len(expected)
        page.get_by_text("JavaScript", exact=True).click()
        logged: list[int] = []
        page.on("console", lambda message: logged.append(int(message.text)))
        page.evaluate(f"async () => {{ {page.text_content('#snippet')} }}")
        assert sum(logged) == len(expected)


def test_a_voice_is_recorded_with_consent_spoken_with_and_deleted(
    serve: Serve, browser: Browser, tmp_path: Path
) -> None:
    served = serve("base", voices_folder=tmp_path)
    with visit(browser, served.url) as visitor:
        page = visitor.page
        visitor.say("hello")
        assert "There is none yet" in visitor.page.get_by_role("alert").first.inner_text()
        page.get_by_role("button", name="Add a voice").click()
        page.get_by_label("Name", exact=True).fill("Beeper")
        for group in ("A clip of the voice", "The speaker’s consent, recorded"):
            box = page.get_by_role("group", name=group)
            box.get_by_role("button", name="Record").click()
            page.wait_for_timeout(1500)
            box.get_by_role("button", name="Stop recording").click()
            visitor.wait(lambda box=box: "of sound" in box.get_by_role("status").inner_text())
        page.get_by_label("I am the speaker").check()
        page.get_by_role("button", name="Add", exact=True).click()
        visitor.wait(lambda: "which language" in visitor.text("#voice-problem"))
        assert served.supervisor.engine is not None and httpx.get(f"{served.url}/v1/audio/voices").json() == {
            "voices": []
        }
        page.get_by_label("Language of the recording").fill("en")
        page.get_by_role("button", name="Add", exact=True).click()
        visitor.wait(lambda: page.locator("#voice option:checked").all_inner_texts() == ["Beeper"])
        visitor.say("hello", seed="3")
        visitor.wait(lambda: visitor.player("state") in ("speaking", "done"))
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Delete this voice").click()
        visitor.wait(lambda: "There is none yet" in visitor.text("#no-voice"))
        assert httpx.get(f"{served.url}/v1/audio/voices").json() == {"voices": []}


def test_a_model_that_clones_and_makes_voices_up_speaks_without_an_upload(
    serve: Serve, browser: Browser, tmp_path: Path
) -> None:
    served = serve("toy", voices_folder=tmp_path, consent="asserted")
    with visit(browser, served.url) as visitor:
        assert "makes a voice up" in visitor.text("#no-voice") and not visitor.page.locator("#voice").is_visible()
        visitor.say("hello", seed="3")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.text("#problem") == ""
    assert upload(served.url, wav(), name="Anna", consent="she agreed").status_code == 200
    with visit(browser, served.url) as visitor:
        assert visitor.page.locator("#voice option").all_inner_texts() == ["made up by the model", "Anna"]


def test_openais_names_are_folded_away_until_asked_for(serve: Serve, browser: Browser) -> None:
    with visit(browser, serve().url) as visitor:
        assert visitor.page.locator("#voice option[value=alloy]").count() == 0
        assert visitor.page.get_by_role("button", name="Add a voice").count() == 0  # this model cannot clone
        visitor.page.get_by_text("More", exact=True).click()
        visitor.page.get_by_label("List OpenAI’s voice names too").check()
        assert visitor.page.locator("#voice option[value=alloy]").count() == 1


def test_a_phone_and_a_keyboard_are_enough(serve: Serve, browser: Browser) -> None:
    with visit(browser, serve().url, width=360) as visitor:
        page = visitor.page
        page.get_by_text("More", exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_label("What should it say?").focus()
        reached = []
        for _ in range(25):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.value || ''"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none" or reached[-1] in ("", "curl"), reached[-1]  # a radio's is on its label
            if reached[-1] == "snippet":
                break
        order = ["voice", "language", "speed", "seed", "aliases", "speak", "copy", "snippet"]
        assert [name for name in reached if name in order] == order


def test_the_panel_rests_while_nobody_looks(serve: Serve, browser: Browser) -> None:
    with visit(browser, serve().url) as visitor:
        polls = lambda: sum(a.endswith("/v1/engine/stats") for a in visitor.addresses)  # noqa: E731
        visitor.wait(lambda: polls() >= 2)
        visible = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        visible += " document.dispatchEvent(new Event('visibilitychange')); }"
        visitor.page.evaluate(visible, True)
        before = polls()
        visitor.page.wait_for_timeout(2500)
        assert polls() <= before + 1  # one may have been on its way
        visitor.page.evaluate(visible, False)
        visitor.wait(lambda: polls() > before + 1)


PIECE = pcm16(0.5 * np.sin(np.arange(4800) / 10).astype(np.float32)).tobytes()  # 0.2 s


@pytest.fixture
def halting() -> Iterator[str]:
    """A server with our page whose sound stops for half a second, and breaks off where the text says so."""
    app = FastAPI()
    app.include_router(page_routes())
    engine = {"model": "slow", "device": "cpu", "languages": [], "instructs": False, "clones": False, "uploads": None}
    app.get("/v1/engine")(lambda: {**engine, "max_text_chars": 1000})
    app.get("/v1/audio/voices")(lambda: {"voices": [{"id": "a", "name": "a", "kind": "own"}]})
    recent = {"window_s": 1, "requests": 0, "ttfp_p50_s": None, "ttfp_p99_s": None, "rtf_p50": None, "rejected": 0}
    recent |= {"step_s": None, "step_phases_s": {}, "batch_rows": None, "steps_per_s": 0, "audio_s_per_s": 0}
    gpu = {"memory_used_bytes": 40 << 30, "memory_total_bytes": 140 << 30, "utilisation_ratio": 0.5}
    gpu |= {"power_watts": 300, "temperature_celsius": 50}
    app.get("/v1/engine/stats")(lambda: {"ready": True, "restarts": 0, "recent": recent, "gpu": gpu})

    @app.post("/v1/audio/speech")
    async def speech(body: dict[str, str]) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield PIECE
            await asyncio.sleep(0.7)
            if "break" in body["input"]:
                raise ConnectionError("as asked")
            for _ in range(4):
                yield PIECE
            yield PIECE[:3333]  # and half a sample
            await asyncio.sleep(0.1)
            yield PIECE[3333:]

        return StreamingResponse(pieces(), media_type="audio/pcm")

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def test_a_gap_is_counted_once_and_no_sample_is_lost(halting: str, browser: Browser) -> None:
    with visit(browser, halting) as visitor:
        visitor.say("hello")
        visitor.wait(lambda: visitor.player("state") == "done")
        assert visitor.player("gaps") == "1" and int(visitor.player("played")) == 6 * 4800
        assert "40 GiB" in visitor.text("#tiles") and "50 %" in visitor.text("#tiles")  # where there is a GPU
        assert "1 gap" in visitor.text("#status") and visitor.page.get_by_text("a gap that was heard").is_visible()


def test_a_connection_that_breaks_off_is_told_apart_from_an_end(halting: str, browser: Browser) -> None:
    with visit(browser, halting) as visitor:
        visitor.say("please break")
        visitor.wait(lambda: visitor.player("state") == "failed")
        assert "not the whole text" in visitor.page.get_by_role("alert").first.inner_text()
