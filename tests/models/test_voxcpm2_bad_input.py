"""What VoxCPM2 cannot speak or load gives an error with the reason, and the engine goes on serving."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sonant
from clips import reference_clip
from sonant import Engine, Sampling, Voice
from sonant.engine.graphs import buckets_up_to
from sonant.errors import BadAudio, BadRequest, BadSampling, BadText, CheckpointError, UnknownVoice, Unsupported
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.knobs import FLOW_STEPS, USUAL_STEPS
from sonant.types import Samples

NAN, INF = float("nan"), float("inf")
WORDS = "what the clip says"


@pytest.fixture(scope="module")
def engine(tiny_voxcpm2: Path) -> Iterator[Engine]:
    with sonant.load(tiny_voxcpm2, device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def usual(engine: Engine) -> Samples:
    return engine.speak("hello", seed=1, max_frames=2).samples


@pytest.fixture(autouse=True)
def still_serving(engine: Engine, usual: Samples) -> Iterator[None]:
    """Check that the engine speaks after each test as it did before all of them."""
    yield
    assert np.array_equal(engine.speak("hello", seed=1, max_frames=2).samples, usual)


@pytest.mark.parametrize("steps", [0, 1, 7, 10_000, -10, 10.5, True, NAN, INF, "10"])
def test_only_the_captured_numbers_of_flow_steps_are_taken(engine: Engine, steps: Any) -> None:
    with pytest.raises(BadSampling, match="inference_timesteps must be one of 4, 6, 10, 20, not"):
        engine.speak("hello", sampling=Sampling(inference_timesteps=steps))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"cfg_value": NAN}, "cfg_value must be a number from 0 to 10, not nan"),
        ({"cfg_value": -INF}, "cfg_value must be a number from 0 to 10"),
        ({"cfg_value": 10.5}, "cfg_value must be a number from 0 to 10"),
        ({"temperature": NAN}, "temperature must be a number from 0 to 2"),
        ({"temperature": -0.1}, "temperature must be a number from 0 to 2"),
        ({"min_len": -1}, "min_len must be a whole number"),
        ({"min_len": 2.5}, "min_len must be a whole number"),
        ({"reference": 1}, "reference must be true or false"),
        ({"top_k": 5}, "no 'top_k' to set; it has cfg_value, inference_timesteps, min_len, .*temperature"),
    ],
)
def test_knobs_out_of_their_range_are_refused(engine: Engine, values: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSampling, match=says):
        engine.speak("hello", sampling=Sampling(**values))


@pytest.mark.parametrize(
    ("values", "steady"), [({"cfg_value": 0.0}, False), ({"cfg_value": 10.0}, False), ({"temperature": 0.0}, True)]
)
def test_the_ends_of_their_ranges_speak(engine: Engine, values: dict[str, Any], steady: bool) -> None:
    """Without noise the seed makes no difference."""
    one, other = (
        engine.speak("hello", seed=seed, max_frames=3, sampling=Sampling(**values)).samples for seed in (1, 2)
    )
    assert np.isfinite(one).all() and np.array_equal(one, other) == steady


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"text": "   "}, BadText, "the text is empty"),
        ({"text": " \n\t\u3000"}, BadText, "the text is empty"),
        ({"text": ""}, BadText, "the text is empty"),
        ({"text": "broken \udcff text"}, BadText, "not valid Unicode"),
        ({"instruct": "low \udcff"}, BadText, "not valid Unicode"),
        ({"voice": "alba"}, UnknownVoice, "no voice 'alba', nor any of its own"),
        ({"streaming_text": True}, Unsupported, "reads its whole text"),
        ({"speakers": ("a low voice", "a high one")}, Unsupported, "one voice at a time"),
        ({"max_frames": 10**9}, BadText, "positions"),
        ({"max_frames": 0}, BadRequest, "max_frames"),
    ],
)
def test_bad_requests_are_refused(engine: Engine, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        engine.speak(**{"text": "hello", **options})


def test_a_prompt_needs_its_text(engine: Engine) -> None:
    """Nothing is continued by guessing: neither a voice that lost its words, nor a clip that never had any."""
    spoken, timbre = engine.clone(reference_clip(), WORDS), engine.clone(reference_clip())
    lost = Voice(spoken.tensors, None, spoken.name, spoken.family)
    with pytest.raises(UnknownVoice, match="the clip's words are not with it"):
        engine.speak("hello", voice=lost)
    only_continue = Sampling(reference=False)
    with pytest.raises(Unsupported, match="this clip's words are not known: clone it with its text"):
        engine.speak("hello", voice=timbre, sampling=only_continue)
    with pytest.raises(Unsupported, match="leave instruct out, or clone the clip without its text"):
        engine.speak("hello", voice=spoken, instruct="low")
    with pytest.raises(BadText, match="reference text is empty"):
        engine.clone(reference_clip(), "   ")
    assert len(engine.speak("hello", voice=spoken, sampling=only_continue, max_frames=2).frames) == 2


def ten_minutes(folder: Path) -> Path:
    """A sparse WAV of 48 kHz, stereo, 16 bits, which takes no space: all but its header is a hole."""
    size = 600 * 48_000 * 4
    header = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 2, 48_000, 192_000, 4, 16, b"data", size
    )
    path = folder / "long.wav"
    path.write_bytes(header)
    os.truncate(path, len(header) + size)
    return path


def test_a_clip_of_ten_minutes_is_refused_before_it_is_decoded(engine: Engine, tmp_path: Path) -> None:
    held = np.broadcast_to(np.float32(0.1), (600 * 48_000, 2))
    for clip in (ten_minutes(tmp_path), (held, 48_000)):
        for words in (None, WORDS):
            with pytest.raises(BadAudio, match=r"600.* s.*cut it to 60 s or less"):
                engine.clone(clip, words)


def test_a_short_stereo_clip_of_48_khz_is_taken(engine: Engine) -> None:
    sound, _ = reference_clip(1.0, 48_000)
    voice = engine.clone((np.stack([sound, sound], 1), 48_000), WORDS)
    assert {name: tensor.shape[0] for name, tensor in voice.tensors.items()} == {"reference": 7, "prompt": 7}
    assert len(engine.speak("hello", voice=voice, max_frames=2).frames) == 2


@pytest.mark.parametrize("spoilt", ["silent", "of another width", "not finite"])
def test_a_clip_or_voice_that_is_none_is_refused(engine: Engine, spoilt: str) -> None:
    if spoilt == "silent":
        with pytest.raises(BadAudio, match="silent"):
            engine.clone((np.zeros(48_000, np.float32), 48_000))
        return
    voice = engine.clone(reference_clip())
    patches = voice.tensors["reference"]
    if spoilt == "not finite":
        patches[0, 0, 0] = NAN
    else:
        voice = Voice({"reference": patches[:, :, :-1]}, family=voice.family)
    with pytest.raises(UnknownVoice, match="encoded by another model"):
        engine.speak("hello", voice=voice)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lm: lm.update(use_mup=True), "use_mup is True; Sonant supports only False"),
        (lambda lm: lm.pop("use_mup"), "lm_config lacks 'use_mup'"),  # the official default is true
    ],
    ids=["on", "left out"],
)
def test_a_model_that_scales_its_embeddings_is_refused(
    tiny_voxcpm2: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    config = json.loads((tiny_voxcpm2 / "config.json").read_text())
    change(config["lm_config"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        VoxCPM2Config.read(tmp_path)


@pytest.mark.parametrize(
    ("part", "key", "value", "says"),
    [
        ("lm_config", "max_position_embeddings", 0, "max_position_embeddings is 0"),
        ("lm_config", "hidden_size", -64, "hidden_size is -64; a size or an id is from 0"),
        ("lm_config", "intermediate_size", 10**30, "intermediate_size is 10+; a size or an id is from 0 to 16777216"),
        ("dit_config", "cfm_config", [0], "cfm_config must hold keys and values"),
        ("", "patch_size", 0, "patch_size is 0"),
    ],
)
def test_a_number_that_no_model_has_is_refused(
    tiny_voxcpm2: Path, tmp_path: Path, part: str, key: str, value: object, says: str
) -> None:
    config = json.loads((tiny_voxcpm2 / "config.json").read_text())
    (config[part] if part else config)[key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        VoxCPM2Config.read(tmp_path)


class Loud:
    """Runs code when it is unpickled in the ordinary way."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("it-ran",))


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ([torch.ones(1)], "holds a list, not tensors by name"),
        ("not a dictionary", "holds a str, not tensors by name"),
        ({"state_dict": {"decoder.model.0.bias": "loud"}}, "is no plain tensor"),
        ({"state_dict": Loud()}, "fetch it again or convert it to safetensors"),
        (b"plain", "fetch it again"),
    ],
    ids=["list", "string", "words", "code", "bytes of another pickle"],
)
def test_a_pickle_that_is_no_state_dict_is_no_codec(
    tiny_voxcpm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Any, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(tiny_voxcpm2, tmp_path / "checkpoint")
    path = folder / "audiovae.pth"
    if isinstance(held, bytes):
        path.write_bytes(pickle.dumps(held))
    else:
        torch.save(held, path)
    with pytest.raises(CheckpointError, match=says) as refused:
        sonant.load(folder, device="cpu")
    assert "audiovae.pth" in str(refused.value) and not Path("it-ran").exists()


def test_every_number_of_flow_steps_has_graphs_for_one_and_for_all(engine: Engine) -> None:
    """A request with a rare number must not fall back to single launches."""
    graphs, largest = engine.loop.runner.graphs.wanted(), engine.config.max_batch
    sizes = {name: [g.bucket for g in graphs if g.step.name == name] for name in {g.step.name for g in graphs}}
    frames = {name: found for name, found in sizes.items() if name.startswith("frame")}
    assert sorted(frames) == sorted(f"frame {steps}" for steps in FLOW_STEPS)
    assert all(found[0] == 1 and found[-1] == largest for found in frames.values())
    assert frames[f"frame {USUAL_STEPS}"] == buckets_up_to(largest)
