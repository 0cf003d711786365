"""The page in a real browser: what a visitor types is spoken, heard, measured and explained."""

from __future__ import annotations

import subprocess
from pathlib import Path

import httpx
import pytest
import soundfile

from serving.browser import Browser, visit
from serving.conftest import Serve, wait_for
from serving.same_sound import same_sound
from serving.test_voice_routes import upload, wav

pytestmark = pytest.mark.slow


def test_what_is_typed_is_spoken_heard_and_saved(serve: Serve, browser: Browser, tmp_path: Path) -> None:
    served = serve()
    body = {"input": "hello the world", "voice": "serena", "seed": 9_007_199_254_741_023, "response_format": "pcm"}
    samples = len(served.post(**body).content) // 2
    with visit(browser, served.url) as visitor:
        visitor.page.get_by_label("Voice", exact=True).select_option("serena")
        visitor.say("hello the world", seed="9007199254741023")  # too large for a JavaScript number
        visitor.wait(lambda: visitor.player("state") == "done")
        assert int(visitor.player("played")) == samples and float(visitor.player("peak")) > 0.001
        assert visitor.text("#first-byte").endswith("ms") and visitor.text("#first-sound").endswith("ms")
        assert float(visitor.text("#rtf")) > 0 and int(visitor.text("#pieces")) >= 1
        assert f"{samples / 24000:.2f} s of sound" in visitor.text("#status")
        with visitor.page.expect_download() as download:
            visitor.page.get_by_role("button", name="Save as WAV", exact=True).click()
        download.value.save_as(tmp_path / "speech.wav")
        saved, rate = soundfile.read(tmp_path / "speech.wav", dtype="int16")
        assert rate == 24000 and same_sound(saved.tobytes(), served.post(**body).content)
        with visitor.page.expect_download() as download:
            visitor.page.get_by_role("button", name="Save as MP3", exact=True).click()
        download.value.save_as(tmp_path / "speech.mp3")
        compressed, rate = soundfile.read(tmp_path / "speech.mp3")
        assert abs(len(compressed) / rate - samples / 24_000) < 0.2  # from the same seed
        measured = visitor.text("#figures")
        visitor.page.get_by_role("button", name="Play again").click()
        visitor.wait(lambda: visitor.player("state") == "speaking")
        visitor.wait(lambda: visitor.player("state") == "done" and int(visitor.player("played")) == samples)
        assert visitor.text("#figures").partition("Gaps")[0] == measured.partition("Gaps")[0]  # playing is no request


def test_stopping_with_the_keyboard_frees_the_row(serve: Serve, browser: Browser) -> None:
    served = serve("endless")
    with visit(browser, served.url) as visitor:
        visitor.say("hello the world " * 15)
        visitor.wait(lambda: int(visitor.player("played")) > 4800)
        assert served.supervisor.engine.stats().running == 1
        visitor.wait(lambda: visitor.text("#tiles dd.large").strip() == "1")  # the panel shows it too
        visitor.page.keyboard.press("Escape")
        wait_for(lambda: served.supervisor.engine.stats().running == 0)
        assert visitor.player("state") == "stopped" and "Stopped after" in visitor.text("#status")
        visitor.say("hello", seed="3")  # and nothing of the first is in the way
        visitor.wait(lambda: visitor.player("state") == "speaking")
        visitor.page.get_by_role("button", name="Stop", exact=True).click()
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
        assert visitor.text("#key-wrong") == ""
        page.get_by_label("API key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        visitor.wait(lambda: "does not know this API key" in visitor.text("dialog[open] [role=alert]"))
        page.get_by_label("API key", exact=True).fill("“secret-key”")
        page.keyboard.press("Enter")
        visitor.wait(lambda: "No API key has such characters" in visitor.text("dialog[open] [role=alert]"))
        assert page.input_value("#key") == ""
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
        assert same_sound(samples.tobytes(), expected)
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


def test_a_damaged_voice_is_shown_as_one_and_can_be_deleted_by_two(
    serve: Serve, browser: Browser, tmp_path: Path
) -> None:
    served = serve("base", voices_folder=tmp_path, consent="asserted")
    for name in ("Anna", "Bea"):
        assert upload(served.url, wav(), name=name, consent="she agreed", ref_text=name).status_code == 200
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    assert upload(served.url, wav(), name="Cleo", consent="she agreed", ref_text="Cleo").status_code == 200
    with visit(browser, served.url) as visitor, visit(browser, served.url) as other:
        for each in (visitor, other):
            options = each.page.locator("#voice option")
            assert options.all_inner_texts() == ["Anna (damaged)", "Bea (damaged)", "Cleo"]
            assert each.page.locator("#voice option:checked").inner_text() == "Cleo"
            each.page.get_by_label("Voice", exact=True).select_option("Anna (damaged)")
            assert "delete it, and add it again" in each.text("#about-voice")
            each.page.on("dialog", lambda dialog: dialog.accept())
            each.page.get_by_role("button", name="Delete this voice").click()
            each.wait(lambda options=options: options.all_inner_texts() == ["Bea (damaged)", "Cleo"])
            assert each.text("#problem") == ""


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
            assert outline != "none" or reached[-1] in ("", "curl"), reached[-1]  # a radio button's is on its label
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
        assert polls() <= before + 1  # one request may have been on its way
        visitor.page.evaluate(visible, False)
        visitor.wait(lambda: polls() > before + 1)
