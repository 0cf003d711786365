"""What cannot be done is reported in one line, with exit code 2, and leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from clips import reference_clip
from sonant.cli.main import build_parser
from sonant.cli.serve import read_options

Folders = Mapping[str, Path]
Run = Callable[..., Any]  # returns the Outcome of conftest.py
SAY = ("say", "Hello.", "--device", "cpu")


def refusal(run: Run, *args: str | Path) -> str:
    before = set(Path.cwd().iterdir())
    done = run(*args)
    assert done.code == 2
    assert done.out == b""
    assert "Traceback" not in done.err
    assert set(Path.cwd().iterdir()) == before
    return done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--voice", "nobody"], "no voice 'nobody'; this checkpoint has serena, vivian"),
        (["--language", "klingon"], "no language 'klingon'; this checkpoint speaks auto, chinese"),
        (["--temperature", "nan"], "temperature must be a number from"),
        (["--temperature", "-1"], "temperature must be a number from"),
        (["--top-k", "-3"], "top_k must be a whole number"),
        (["--subtalker-top-p", "1.5"], "subtalker_top_p must be a number from"),
        (["--repetition-penalty", "inf"], "repetition_penalty must be a number from"),
        (["--seed", "-1"], "seed must be from 0"),
        (["--max-frames", "0"], "max_frames must be at least 1"),
        (["--max-frames", "1000000"], "lower max_frames"),
        (["--clone", "nowhere.wav"], "nowhere.wav does not exist"),
        (["--ref-text", "Words."], "need --clone"),
        (["--save-voice", "v"], "need --clone"),
        (["--voice-file", "nowhere.voice"], "nowhere.voice cannot be read as a saved voice"),
        (["--speaker", "text=low"], "this model speaks with one voice at a time; leave speakers out"),
        (["--speaker", "clone=nowhere.wav"], "this model speaks with one voice at a time"),
        (["--speaker", "low"], "--speaker takes text=…, voice=FILE or clone=CLIP, not 'low'"),
        (["--speaker", "text= "], "--speaker takes text=…, voice=FILE or clone=CLIP, not 'text= '"),
        (["--speaker", "pitch=low"], "--speaker takes text=…"),
        (["--codec", "elsewhere"], "this model's codec is in its own folder; leave --codec out"),
        (["--codec", ""], "codec must be a folder or file"),
        (["--device", "tpu"], "use auto, cpu or cuda"),
        (["--gpu-weights", 310 * "9" + "GiB"], "gpu_weights must be a size as 3GiB"),
        (["--out", "missing/out.wav"], "cannot write missing/out.wav: No such file or directory"),
        (["--out", "."], "does not tell the format"),
        (["--out", ".", "--format", "wav"], "is not a regular file"),
        (["--out", "out.mp3"], "end it in .wav, .flac or .pcm"),
        (["--out", "-", "--format", "flac"], "use --format wav or pcm"),
    ],
    ids=" ".join,
)
def test_bad_options(run: Run, tiny_checkpoints: Folders, options: list[str], message: str) -> None:
    shown = refusal(run, *SAY, "--model", tiny_checkpoints["custom"], *options)
    assert shown.startswith("sonant: ") and shown.count("\n") == 1
    assert message in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        (" \n", "the text is empty"),
        ("…?!", "nothing that can be spoken"),
        ("a" * 100_000, "100,000 characters, over the limit of 20,000"),
        ("caf\udce9", "not valid Unicode at character 3"),  # an argument in Latin-1, as Python passes it on
    ],
    ids=["empty", "blank", "marks", "long", "not unicode"],
)
def test_bad_text_is_refused_before_anything_is_loaded(run: Run, text: str, message: str) -> None:
    assert message in refusal(run, "say", text, "--model", "nowhere")


def test_stdin_that_is_not_utf8_is_refused_with_the_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("gr\xfc\xdfe".encode("latin-1"))))
    assert "byte 0xfc at offset 2" in refusal(run, "say", "-", "--model", "nowhere")


def test_a_terminal_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = TextIOWrapper(BytesIO())
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "no text was given" in refusal(run, "say", "--model", "nowhere")


def test_a_build_without_a_voice_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonant.cli.model_folder.bundled_voice", lambda: None)
    shown = refusal(run, *SAY)
    assert "--model DIR" in shown and "SONANT_MODEL" in shown and "sonant random-model DIR" in shown


def test_the_model_can_come_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONANT_MODEL", "from-the-environment")
    assert "from-the-environment is not a folder" in refusal(run, *SAY)
    assert "from-the-option is not a folder" in refusal(run, *SAY, "--model", "from-the-option")
    assert "aaa cannot be opened: File name too long" in refusal(run, *SAY, "--model", "a" * 300)


def test_a_dialogue_has_no_one_voice(run: Run) -> None:
    done = run(*SAY, "--speaker", "text=low", "--voice", "ryan")
    assert done.code == 2 and "not allowed with argument --speaker" in done.err


@pytest.mark.parametrize("given", ["option", "environment"])
@pytest.mark.parametrize("command", ["say", "doctor", "bench offline", "profile run", "serve"])
def test_a_codec_that_the_model_has_no_use_for_is_refused(
    run: Run, tiny_checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, command: str, given: str
) -> None:
    folder = str(tiny_checkpoints["custom"])
    own = {"say": ["Hello.", "--model", folder], "profile run": [folder], "serve": [folder, "--port", "0"]}
    args = [*command.split(), *own.get(command, ["--model", folder])]
    if given == "option":
        args += ["--codec", "elsewhere"]
    else:
        monkeypatch.setenv("SONANT_CODEC", "elsewhere")
    if command == "serve":
        _, _, config = read_options(build_parser().parse_args(args))
        assert config.codec == "elsewhere"
        return
    done = run(*args)
    assert done.code == (1 if command == "doctor" else 2)
    assert "this model's codec is in its own folder" in done.out.decode() + done.err


@pytest.mark.parametrize("command", [SAY, ("voices",)], ids=["say", "voices"])
def test_a_folder_that_is_no_checkpoint(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in refusal(run, *command, "--model", "empty")


@pytest.mark.parametrize("clip", ["empty", "silent", "text", "long", "short"])
def test_a_reference_clip_that_cannot_be_used(run: Run, tiny_checkpoints: Folders, clip: str) -> None:
    samples, rate = reference_clip()
    if clip == "empty":
        Path("clip.wav").write_bytes(b"")
    elif clip == "text":
        Path("clip.wav").write_text("this is no audio")
    elif clip == "silent":
        sf.write("clip.wav", np.zeros(2 * rate), rate)
    else:
        sf.write("clip.wav", np.resize(samples, 600 * 8000 if clip == "long" else 800), 8000)
    shown = refusal(run, *SAY, "--model", tiny_checkpoints["base"], "--clone", "clip.wav")
    assert "clip.wav" in shown


def test_cloning_with_a_model_that_cannot(run: Run, tiny_checkpoints: Folders) -> None:
    sf.write("clip.wav", *reference_clip())
    shown = refusal(run, *SAY, "--model", tiny_checkpoints["custom"], "--clone", "clip.wav")
    assert "Base checkpoint" in shown


def test_a_voice_that_cannot_be_saved(run: Run, tiny_checkpoints: Folders) -> None:
    sf.write("clip.wav", *reference_clip())
    options = ("--clone", "clip.wav", "--save-voice", "missing/me.voice")
    assert "cannot write the voice" in refusal(run, *SAY, "--model", tiny_checkpoints["base"], *options)


def test_argparse_refuses_the_rest(run: Run) -> None:
    for options in ("--threads 0", "--threads 100000", "--seed x", "--dtype int8", "--voice a --clone b"):
        assert "error: argument" in refusal(run, *SAY, *options.split())


def test_debug_shows_where_it_happened(run: Run) -> None:
    done = run(*SAY, "--model", "nowhere", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err and done.err.splitlines()[-1].startswith("sonant: nowhere")


def test_a_fault_of_ours_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sonant.cli.say.model_folder", fault)
    with pytest.raises(ZeroDivisionError):
        run(*SAY)
