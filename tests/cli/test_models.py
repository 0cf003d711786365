"""`voices` and `doctor` describe models without loading them, and `random-model` makes one."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import soundfile as sf
import torch

from sonant.kernels.dispatch import OPS
from sonant.kernels.gpu import Gpu

Folders = Mapping[str, Path]
Run = Callable[..., Any]  # returns the Outcome of conftest.py
FP8 = ("--quantize", "fp8")


@pytest.fixture
def configs_only(tiny_checkpoints: Folders, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint without its weights."""

    def copy(name: str) -> Path:
        return Path(
            shutil.copytree(tiny_checkpoints[name], tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
        )

    return copy


@pytest.mark.parametrize(
    ("name", "voices", "clones", "designs"),
    [("custom", 9, False, False), ("base", 0, True, False), ("design", 0, False, True)],
)
def test_voices_needs_no_weights(
    run: Run, configs_only: Callable[[str], Path], name: str, voices: int, clones: bool, designs: bool
) -> None:
    folder = configs_only(name)
    done = run("voices", "--model", folder, "--json")
    told = json.loads(done.out)
    assert (done.code, told["model"], told["family"]) == (0, str(folder), "qwen3_tts")
    assert (len(told["voices"]), told["clones"], told["designs"]) == (voices, clones, designs)
    assert told["languages"][:2] == ["auto", "chinese"]
    assert not any("dialect" in language for language in told["languages"])
    assert (told["sample_rate"], told["frame_rate"]) == (24_000, 12.5)


def test_voices_for_people(run: Run, configs_only: Callable[[str], Path]) -> None:
    shown = run("voices", "--model", configs_only("custom")).out.decode()
    assert "serena, vivian" in shown and "24000 Hz" in shown and "one in a text" in shown
    assert "--clone CLIP" in run("voices", "--model", configs_only("base")).out.decode()
    assert "--instruct TEXT" in run("voices", "--model", configs_only("design")).out.decode()


def test_voices_of_a_model_that_clones_and_makes_them_up(run: Run, tiny_higgs: Path) -> None:
    told = json.loads(run("voices", "--model", tiny_higgs, "--json").out)
    assert (told["voices"], told["clones"], told["designs"], told["most_speakers"]) == ([], True, True, 8)
    shown = run("voices", "--model", tiny_higgs).out.decode()
    for words in ("--clone CLIP, or from words: --instruct TEXT", "up to 8 in a text", "25 frames a second"):
        assert words in shown


def test_voices_of_a_model_that_speaks_with_one_at_48_khz(run: Run, tiny_voxcpm2: Path) -> None:
    told = json.loads(run("voices", "--model", tiny_voxcpm2, "--json").out)
    assert (told["family"], told["voices"], told["clones"], told["designs"]) == ("voxcpm2", [], True, True)
    assert (told["sample_rate"], told["frame_rate"], told["most_speakers"]) == (48_000, 6.25, 1)
    shown = run("voices", "--model", tiny_voxcpm2).out.decode()
    for words in ("--clone CLIP, or from words: --instruct TEXT", "one in a text", "48000 Hz, 6.25 frames a second"):
        assert words in shown


def test_doctor_tells_what_will_run(run: Run) -> None:
    done = run("doctor", "--json")
    told = json.loads(done.out)
    assert (done.code, told["problems"], told["model"]) == (0, [], None)
    assert set(told["auto"]) == {"device", "dtype", "codec_dtype"}
    assert {k["op"] for k in told["kernels"] if k["device"] == "cpu"} == set(OPS)
    assert all(k["implementation"] and k["reason"] for k in told["kernels"])
    assert told["packages"]["torch"] and told["cpu_cores"] >= 1
    assert bool(told["gpus"]) != bool(told["no_gpu_reason"])


def test_doctor_for_people(run: Run, tiny_checkpoints: Folders) -> None:
    shown = run("doctor", "--model", tiny_checkpoints["base"]).out.decode()
    for word in ("python", "torch", "soxr", "auto", "paged_attention", "complete", "a cached position"):
        assert word in shown


def test_doctor_weighs_a_model_from_its_headers(run: Run, tiny_checkpoints: Folders) -> None:
    done = run("doctor", "--json", "--model", tiny_checkpoints["base"])
    model = json.loads(done.out)["model"]
    assert (done.code, model["error"]) == (0, None)
    files = sum(p.stat().st_size for p in tiny_checkpoints["base"].rglob("*.safetensors"))
    assert 0.5 * files < model["weight_bytes"] < 1.2 * files  # half as much in bfloat16, but for the encoders
    assert model["needed_bytes"] > model["weight_bytes"] + model["row_bytes"] + model["kv_token_bytes"]


def test_doctor_weighs_a_model_in_eight_bits(run: Run, tiny_voxcpm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = (json.loads(run("doctor", str(tiny_voxcpm2), *o, "--json").out)["model"] for o in ((), FP8))
    assert made["weight_bytes"] < 0.9 * plain["weight_bytes"] and made["needed_bytes"] < plain["needed_bytes"]
    assert (plain["quantize"], made["quantize"], made["error"]) == (None, "fp8", None)
    assert "layers in fp8" in run("doctor", str(tiny_voxcpm2), *FP8).out.decode()
    assert run("doctor", *FP8).code != 0 and run("doctor", str(tiny_voxcpm2), "--quantize", "int4").code != 0
    monkeypatch.setattr("sonant.cli.doctor.gpu_of", lambda device: Gpu("NVIDIA A100", (8, 0)))
    done = run("doctor", str(tiny_voxcpm2), *FP8, "--json")
    (problem,) = json.loads(done.out)["problems"]
    assert done.code == 1 and "NVIDIA A100 has 8.0" in problem


def test_doctor_tells_how_fast_a_step_can_be_whose_weights_come_over_the_bus(run: Run, tiny_higgs: Path) -> None:
    done = run("doctor", str(tiny_higgs), "--gpu-weights", "8MiB", "--json")
    model = json.loads(done.out)["model"]
    weights = model["weights"]
    assert (done.code, model["error"]) == (0, None)
    assert weights["device_bytes"] <= 8 << 20 < weights["device_bytes"] + weights["host_bytes"]
    assert weights["floor_s"] >= weights["step_bytes"] / weights["bus_bytes_per_s"] and weights["listeners"] >= 1
    shown = run("doctor", "--model", tiny_higgs, "--gpu-weights", "8MiB").out.decode()
    assert "in host memory" in shown and "can listen in real time" in shown


def test_doctor_tells_what_a_cache_of_eight_bits_takes(run: Run, tiny_higgs: Path) -> None:
    usual, small = (
        json.loads(run("doctor", "--model", tiny_higgs, *more, "--json").out)["model"]
        for more in ((), ("--kv-cache-dtype", "fp8"))
    )
    wide = getattr(torch, usual["kv_dtype"]).itemsize
    assert small["kv_dtype"] == "float8_e4m3fn" and small["kv_token_bytes"] * wide == usual["kv_token_bytes"]
    assert "(float8_e4m3fn)" in run("doctor", "--model", tiny_higgs, "--kv-cache-dtype", "fp8").out.decode()
    assert run("doctor", "--kv-cache-dtype", "fp8").code != 0
    assert run("doctor", "--model", tiny_higgs, "--kv-cache-dtype", "int4").code != 0


def test_doctor_refuses_too_little_with_the_least_that_works(run: Run, tiny_higgs: Path) -> None:
    done = run("doctor", str(tiny_higgs), "--gpu-weights", "1MiB", "--json")
    (problem,) = json.loads(done.out)["problems"]
    assert done.code == 1 and "the least that works is" in problem
    least = problem.rsplit(" ", 1)[1]
    assert json.loads(run("doctor", str(tiny_higgs), "--gpu-weights", least, "--json").out)["problems"] == []
    assert run("doctor", "--gpu-weights", "1MiB").code != 0


def test_doctor_weighs_a_codec_in_a_pickle(run: Run, tiny_voxcpm2: Path, tmp_path: Path) -> None:
    done = run("doctor", "--json", "--model", tiny_voxcpm2)
    model = json.loads(done.out)["model"]
    assert (done.code, model["error"]) == (0, None)
    files = sum((tiny_voxcpm2 / name).stat().st_size for name in ("model.safetensors", "audiovae.pth"))
    assert 0.5 * files < model["weight_bytes"] < 1.2 * files
    broken = shutil.copytree(tiny_voxcpm2, tmp_path / "broken")
    (broken / "audiovae.pth").write_bytes(b"cut")
    done = run("doctor", "--json", "--model", broken)
    problems = json.loads(done.out)["problems"]
    assert (done.code, len(problems)) == (1, 1) and "audiovae.pth" in problems[0]


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SONANT_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_settings")
def test_doctor_tells_what_a_server_would_meet(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("SONANT_PORT", str(port))
        done = run("doctor", "--json")
        told = json.loads(done.out)["serving"]
        assert (done.code, told["host"], told["port"], told["has_keys"]) == (0, "127.0.0.1", port, False)
        assert told["packages"]["uvicorn"] and not told["public"] and told["voices_folder"] is None
        assert str(port) in told["port_problem"]
        assert f" nothing can listen on 127.0.0.1:{port}" in run("doctor").out.decode()
        assert told["file_limit"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setenv("SONANT_VOICES_FOLDER", str(tmp_path / "voices"))
    monkeypatch.setenv("SONANT_API_KEYS", "one,two")
    shown = run("doctor").out.decode()
    for words in (
        "fastapi ",
        f"127.0.0.1:{port} is free; reached from this machine only, with API keys",
        "voices, can be written",
    ):
        assert words in shown
    assert "open files" in shown and "two," not in shown


@pytest.mark.usefixtures("no_settings")
def test_doctor_finds_what_would_keep_a_server_from_starting(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "sonant.toml").write_text('host = "0.0.0.0"\nport = 0\nvoices_folder = "file/voices"\n')
    monkeypatch.setenv("SONANT_CONFIG", "sonant.toml")
    done = run("doctor")
    shown = done.out.decode()
    assert done.code == 1 and "BROKEN: the folder for voices, file/voices, cannot be written" in shown
    assert "ANYBODY WHO REACHES IT MAY USE IT" in shown
    monkeypatch.setenv("SONANT_PORT", "many")
    done = run("doctor")
    assert done.code == 1 and "BROKEN: a server would not start: SONANT_PORT must be" in done.out.decode()


def test_doctor_says_how_to_get_what_serving_lacks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonant.cli.serving_facts.version_of", lambda name: None if name == "fastapi" else "1.0")
    done = run("doctor")
    assert done.code == 0 and "lacks fastapi; install with: pip install 'sonant[serve]'" in done.out.decode()


@pytest.mark.parametrize("fault", ["no weights", "cut short", "no folder"])
def test_doctor_finds_a_broken_model(run: Run, configs_only: Callable[[str], Path], fault: str) -> None:
    folder = configs_only("custom")
    if fault == "cut short":
        (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    elif fault == "no folder":
        folder = folder / "nowhere"
    done = run("doctor", "--json", "--model", folder)
    problems = json.loads(done.out)["problems"]
    assert (done.code, len(problems)) == (1, 1)
    assert "cannot be loaded" in problems[0] and str(folder) in problems[0]
    assert b"BROKEN: the model cannot be loaded" in run("doctor", "--model", folder).out


def test_doctor_finds_too_little_memory(run: Run, tiny_checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sonant.cli.machine._memory", lambda: (10_000_000, 20_000_000))
    done = run("doctor", "--model", tiny_checkpoints["custom"])
    assert done.code == 1
    assert b"BROKEN: the model needs " in done.out and b"10.00 MB is free" in done.out


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_a_random_model_speaks(run: Run, kind: str) -> None:
    made = run("random-model", "deep/model", "--kind", kind)
    assert (made.code, made.err) == (0, "")
    assert b"babbles" in made.out
    done = run("say", "Hello.", "--model", "deep/model", "--max-frames", "3", "--device", "cpu")
    assert done.code == 0
    assert sf.info("out.wav").samplerate == 24_000
    assert sorted(p.name for p in Path("deep").iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("family", "codec"),
    [("qwen3_tts", "speech_tokenizer"), ("higgs_audio_v2", "audio_tokenizer"), ("voxcpm2", "audiovae.pth")],
)
def test_a_random_model_is_the_familys_first_kind_and_size_unless_told(run: Run, family: str, codec: str) -> None:
    made = run("random-model", "model", "--family", family)
    assert (made.code, made.err) == (0, "")
    assert b" a tiny " in made.out
    assert {"config.json", "model.safetensors", codec} <= {p.name for p in Path("model").iterdir()}


@pytest.mark.parametrize(
    ("family", "option", "value", "others"),
    [
        ("higgs_audio_v2", "--kind", "custom_voice", "--kind base"),
        ("higgs_audio_v2", "--size", "1.7b", "--size tiny, 3b"),
        ("qwen3_tts", "--size", "3b", "--size tiny, 0.6b, 1.7b"),
        ("voxcpm2", "--kind", "voice_design", "--kind base"),
        ("voxcpm2", "--size", "3b", "--size tiny, mid, 2b"),
    ],
)
def test_a_random_model_of_another_familys_kind_or_size_is_refused(
    run: Run, family: str, option: str, value: str, others: str
) -> None:
    refused = run("random-model", "model", "--family", family, option, value)
    assert refused.code == 2
    assert f"{family} has no {option[2:]} '{value}': choose {others}" in refused.err
    assert not Path("model").exists()


def test_a_random_model_overwrites_only_when_told(run: Run) -> None:
    Path("model").mkdir()
    assert run("random-model", "model").code == 0  # an empty folder is fine
    config = Path("model/config.json").read_bytes()
    Path("model/notes.txt").write_text("mine")
    refused = run("random-model", "model", "--kind", "base")
    assert refused.code == 2 and "--force" in refused.err
    assert Path("model/config.json").read_bytes() == config
    assert run("random-model", "model", "--kind", "base", "--force").code == 0
    assert Path("model/config.json").read_bytes() != config
    assert Path("model/notes.txt").read_text() == "mine"


def test_a_random_model_that_fails_leaves_nothing(run: Run) -> None:
    assert run("random-model", "model", "--tokenizer-from", "nowhere").code == 2
    assert [p for p in Path().rglob("*") if p.is_file()] == []
    Path("file").write_text("")
    refused = run("random-model", "file/model")
    assert refused.code == 2 and refused.err.startswith("sonant: cannot write file/model")


def test_help_tells_what_a_knob_means_to_each_model(run: Run) -> None:
    shown = " ".join(run("say", "--help").out.decode().split())
    for words in (
        "randomness of the choice of a frame's first code; a number from 0.001 to 100",
        "/ how much noise a patch begins with; a number from 0 to 2",
        "flow steps from noise to a patch; one of 4, 6, 10, 20",
    ):
        assert words in shown


@pytest.mark.parametrize("command", [(), ("say",), ("voices",), ("doctor",), ("random-model",)], ids=str)
def test_help_has_examples(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command, "--help")
    assert done.code == 0
    assert b"examples:" in done.out
