"""`sonant say` speaks into a file or a pipe, the same way for the same seed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import torch

import sonant
from clips import reference_clip
from sonant import Engine, EngineConfig, Voice
from sonant.cli.progress import Progress
from toy_family.recording import RecordingToy

Folders = Mapping[str, Path]
Run = Callable[..., Any]  # returns the Outcome of conftest.py
TEXT = "Hello there."
FRAMES = 6
FRAME_SAMPLES, RATE = 1920, 24_000
SHORT = ("--seed", "1", "--max-frames", str(FRAMES), "--device", "cpu")


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data)))


def as_terminal(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: True)


def test_it_writes_what_the_engine_makes(run: Run, few_codebooks: Folders, tmp_path: Path) -> None:
    done = run("say", TEXT, "--model", few_codebooks["custom"], "-o", "a.wav", *SHORT)
    assert (done.code, done.out) == (0, b"")
    info = sf.info("a.wav")
    assert (info.format, info.subtype, info.channels) == ("WAV", "PCM_16", 1)
    assert (info.samplerate, info.frames) == (RATE, FRAMES * FRAME_SAMPLES)
    with sonant.load(few_codebooks["custom"], device="cpu") as engine:
        speech = engine.speak(TEXT, seed=1, max_frames=FRAMES)
    np.testing.assert_allclose(sf.read("a.wav", dtype="float32")[0], speech.samples, atol=1.1 / 32768)
    assert [p.name for p in tmp_path.iterdir()] == ["a.wav"]


def test_the_same_seed_gives_the_same_bytes(run: Run, few_codebooks: Folders) -> None:
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        done = run("say", TEXT, "--model", few_codebooks["custom"], "-o", f"{name}.wav", *SHORT, "--seed", seed)
        assert done.code == 0
        assert f"seed {seed}" in done.err
    a, b, c = (Path(f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("text", [("-",), ()], ids=["dash", "nothing"])
def test_text_can_be_piped_in(
    run: Run, few_codebooks: Folders, monkeypatch: pytest.MonkeyPatch, text: tuple[str, ...]
) -> None:
    model = ("--model", few_codebooks["custom"])
    run("say", "Grüße, 世界.", *model, "-o", "given.wav", *SHORT)
    pipe_in(monkeypatch, b"\xef\xbb\xbf" + "Grüße, 世界.\n".encode())
    assert run("say", *text, *model, "-o", "piped.wav", *SHORT).code == 0
    assert Path("given.wav").read_bytes() == Path("piped.wav").read_bytes()


def test_text_that_looks_like_an_option_can_be_said(run: Run, few_codebooks: Folders) -> None:
    assert run("say", "--model", few_codebooks["custom"], *SHORT, "--", "--5 degrees").code == 0
    assert Path("out.wav").exists()


@pytest.mark.parametrize("name", ["a.flac", "a.pcm", "a.raw", "a.sound"])
def test_the_format_is_by_suffix_unless_it_is_given(run: Run, few_codebooks: Folders, name: str) -> None:
    model = ("--model", few_codebooks["custom"])
    run("say", TEXT, *model, "-o", "a.wav", *SHORT)
    given = ("--format", "flac") if name == "a.sound" else ()
    assert run("say", TEXT, *model, "-o", name, *given, *SHORT).code == 0
    if name in ("a.flac", "a.sound"):
        assert sf.info(name).format == "FLAC"
        samples, _ = sf.read(name, dtype="int16")
    else:
        samples = np.frombuffer(Path(name).read_bytes(), "<i2")
    np.testing.assert_array_equal(samples, sf.read("a.wav", dtype="int16")[0])


@pytest.mark.parametrize("format", ["wav", "pcm"])
def test_stdout_carries_the_sound_and_nothing_else(run: Run, few_codebooks: Folders, format: str) -> None:
    model = ("--model", few_codebooks["custom"])
    run("say", TEXT, *model, "-o", "a.wav", *SHORT)
    given = () if format == "wav" else ("--format", format)
    done = run("say", TEXT, *model, "-o", "-", *given, *SHORT)
    assert "stdout: 0.48 s of sound" in done.err
    header = 44 if format == "wav" else 0
    if header:
        assert sf.info(BytesIO(done.out)).samplerate == RATE
    samples = np.frombuffer(done.out[header:], "<i2").astype(int)
    # A listener gets smaller chunks than a file, which may round the last bit differently.
    assert np.abs(samples - sf.read("a.wav", dtype="int16")[0]).max() <= 1


def test_a_clone_can_be_kept_and_used_again(run: Run, few_codebooks: Folders) -> None:
    model = ("--model", few_codebooks["base"])
    sf.write("ref.wav", *reference_clip())
    cloned = run(
        "say", TEXT, *model, "-o", "a.wav", *SHORT,
        "--clone", "ref.wav", "--ref-text", "The user.", "--save-voice", "me.voice",
    )  # fmt: skip
    assert cloned.code == 0
    assert run("say", TEXT, *model, "-o", "b.wav", *SHORT, "--voice-file", "me.voice").code == 0
    assert Path("a.wav").read_bytes() == Path("b.wav").read_bytes()
    assert run("say", TEXT, *model, "-o", "c.wav", *SHORT, "--clone", "ref.wav").code == 0
    assert Path("c.wav").read_bytes() != Path("a.wav").read_bytes()


def test_all_that_shapes_the_voice_reaches_the_model(run: Run, few_codebooks: Folders) -> None:
    model = ("--model", few_codebooks["custom"])
    variants: dict[str, tuple[str, ...]] = {
        "plain": (),
        "voice": ("--voice", "Sohee"),
        "language": ("--language", "ko"),
        "instruct": ("--instruct", "whisper"),
        "streaming": ("--streaming-text",),
        "greedy": ("--greedy",),
        "temperature": ("--temperature", "3"),
        "subtalker": ("--subtalker-temperature", "3", "--subtalker-top-k", "0", "--subtalker-top-p", "0.9"),
    }
    sounds = set()
    for name, options in variants.items():
        done = run("say", TEXT, *model, "-o", f"{name}.wav", *SHORT, *options)
        assert (done.code, name) == (0, name), done.err
        sounds.add(Path(f"{name}.wav").read_bytes())
    assert len(sounds) == len(variants)


class Loading:
    """Opens the toy that speaks dialogues, whatever the folder, and keeps its model and its config."""

    def __init__(self) -> None:
        self.configs: list[EngineConfig] = []
        self.models: list[RecordingToy] = []

    def __call__(self, folder: Path, *, config: EngineConfig, **_: object) -> Engine:
        self.configs.append(config)
        self.models.append(RecordingToy(config, torch.device("cpu"), most_speakers=3))
        return Engine(self.models[-1], config, torch.device("cpu"))


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    found = Loading()
    monkeypatch.setattr("sonant.load", found)
    return found


def test_a_dialogue_has_its_speakers_in_order(run: Run, loading: Loading) -> None:
    sf.write("ref.wav", *reference_clip())
    spoken = ("say", "[SPEAKER0] Hello. [SPEAKER1] Hi.", "--model", "any", *SHORT)
    assert run(*spoken[:1], "Hi.", *spoken[2:], "--clone", "ref.wav", "--save-voice", "me.voice").code == 0
    kinds = ("text=a warm, low voice: an old man's", "clone=ref.wav:What it says: this.", "voice=me.voice")
    done = run(*spoken, *(word for kind in kinds for word in ("--speaker", kind)))
    assert done.code == 0, done.err
    words, clone, saved = loading.models[-1].asked[-1].speakers
    assert words == "a warm, low voice: an old man's"
    assert isinstance(clone, Voice) and clone.text == "What it says: this."
    assert isinstance(saved, Voice) and saved.text is None
    assert run(*spoken, "--speaker", "clone=ref.wav").code == 0
    (timbre,) = loading.models[-1].asked[-1].speakers
    assert isinstance(timbre, Voice) and timbre.text is None
    broken = run(*spoken, "--speaker", "clone=nowhere.wav")
    assert broken.code == 2 and "--speaker clone=nowhere.wav: " in broken.err
    assert "at most 3 speakers" in run(*spoken, *["--speaker", "text=low"] * 4).err


def test_a_codec_elsewhere_reaches_the_model(run: Run, loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    run("say", TEXT, "--model", "any", *SHORT)
    monkeypatch.setenv("SONANT_CODEC", "from-the-environment")
    run("say", TEXT, "--model", "any", *SHORT)
    run("say", TEXT, "--model", "any", *SHORT, "--codec", "given")
    assert [config.codec for config in loading.configs] == [None, "from-the-environment", "given"]


def test_weights_in_eight_bits_reach_the_model(run: Run, loading: Loading) -> None:
    run("say", TEXT, "--model", "any", *SHORT)
    run("say", TEXT, "--model", "any", *SHORT, "--quantize", "fp8")
    assert [config.quantize for config in loading.configs] == [None, "fp8"]
    refused = run("say", TEXT, "--model", "any", "--quantize", "int4")
    assert refused.code == 2 and "int4" in refused.err


# --- what is shown


def test_the_summary_is_one_line_that_can_be_silenced(run: Run, few_codebooks: Folders) -> None:
    # Without SHORT the frame budget is large, so this utterance ends by itself.
    options = ("--model", few_codebooks["custom"], "--seed", "18", "--device", "cpu", "-o", "a.wav")
    shown = run("say", "A short reference.", *options).err
    assert shown.startswith("a.wav: 0.56 s of sound in ")
    assert shown.endswith(" ms, finish stop, seed 18\n")
    assert shown.count("\n") == 1
    assert run("say", "A short reference.", *options, "--quiet").err == ""


def test_speech_that_was_cut_is_pointed_out_even_when_quiet(run: Run, few_codebooks: Folders) -> None:
    done = run("say", TEXT, "--model", few_codebooks["custom"], *SHORT, "--quiet")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "was cut" in done.err and "--max-frames" in done.err


def test_a_terminal_sees_progress(run: Run, few_codebooks: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    as_terminal(monkeypatch, sys.stderr)
    monkeypatch.setattr("sonant.cli.progress_line._REDRAW_S", 0.0)
    shown = run("say", TEXT, "--model", few_codebooks["custom"], *SHORT).err
    assert "loading" in shown
    assert "\r\x1b[K0.5 s of sound, RTF " in shown


# --- interrupted


def test_ctrl_c_leaves_no_new_file_and_keeps_the_old_one(
    run: Run, few_codebooks: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Progress, sound_s: float) -> None:
        assert [p for p in tmp_path.iterdir() if p.suffix == ".part" and p.stat().st_size > 44]
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "add", interrupt)
    (tmp_path / "old.wav").write_bytes(b"what was here before")
    for name in ("old.wav", "new.wav"):
        done = run("say", TEXT, "--model", few_codebooks["custom"], "-o", name, *SHORT)
        assert (done.code, done.err) == (130, "sonant: interrupted\n")
    assert [p.name for p in tmp_path.iterdir()] == ["old.wav"]
    assert (tmp_path / "old.wav").read_bytes() == b"what was here before"


def test_a_real_process_ends_on_a_real_signal(few_codebooks: Folders, tmp_path: Path) -> None:
    # Tests that were started in the background may ignore SIGINT, and child processes inherit that.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from sonant.cli.main import main; sys.exit(main())"
    )
    options = ("--model", few_codebooks["custom"], "-o", tmp_path / "a.wav", "--device", "cpu")
    command = [sys.executable, "-c", program, "say", TEXT * 200, *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 60
    while not any(p.stat().st_size > 44 for p in tmp_path.glob(".a.wav.*.part")):
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "sonant: interrupted\n")
    assert list(tmp_path.iterdir()) == []
