"""A checkpoint loads whole or not at all, and the error names what is wrong."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sonant
from sonant.errors import CheckpointError, ConfigError
from sonant.models import weights

Edit = Callable[[dict[str, torch.Tensor]], object]


@pytest.fixture
def folder(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny_checkpoints["custom"], tmp_path / "checkpoint")


def refuses(folder: Path, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        sonant.load(folder, device="cpu")


def edit(path: Path, change: Edit) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("name", ["talker.model.layers.1.self_attn.k_proj.weight", "talker.codec_head.weight"])
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    edit(folder / "model.safetensors", lambda t: t.pop(name))
    refuses(folder, f"lacks {name}")


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    edit(folder / "model.safetensors", lambda t: t.update({"talker.extra.weight": torch.zeros(2)}))
    refuses(folder, "holds talker.extra.weight")


@pytest.mark.parametrize(
    ("file", "name", "shape"),
    [
        ("model.safetensors", "talker.model.layers.0.self_attn.q_proj.weight", (64, 64)),
        ("model.safetensors", "talker.model.layers.0.self_attn.v_proj.weight", (32, 64)),
        ("model.safetensors", "talker.model.norm.weight", (63,)),
        ("speech_tokenizer/model.safetensors", "decoder.pre_conv.conv.weight", (48, 32, 5)),
    ],
)
def test_a_mis_shaped_tensor_is_named(folder: Path, file: str, name: str, shape: tuple[int, ...]) -> None:
    edit(folder / file, lambda t: t.update({name: torch.zeros(shape)}))
    refuses(folder, name.rsplit(".", 2)[0])


def test_a_codec_tensor_too_many_is_named(folder: Path) -> None:
    edit(folder / "speech_tokenizer" / "model.safetensors", lambda t: t.update({"decoder.odd": torch.zeros(1)}))
    refuses(folder, "decoder.odd")


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    refuses(folder, "not a whole safetensors file.*fetch it again")


def test_a_pickle_is_never_opened(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.safetensors"
    witness = tmp_path / "witness"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return witness.touch, ()  # type: ignore[return-value]

    path.write_bytes(pickle.dumps(Bomb()))
    refuses(folder, "pickle")
    path.unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    refuses(folder, "pytorch_model.bin is a pickle.*convert")
    assert not witness.exists()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, folder: Path) -> None:
    refuses(tmp_path / "nowhere", "is not a folder")
    refuses(folder / "config.json", "is not a folder")
    refuses(tmp_path, "holds no config.json")
    for text, says in (
        ("[1]", "JSON object"),
        ("{", "cannot be read"),
        ('{"model_type": "llama"}', "'llama' is not one"),
    ):
        (tmp_path / "config.json").write_text(text)
        refuses(tmp_path, says)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("config.json", "talker_config"),
        ("config.json", "tts_pad_token_id"),
        ("speech_tokenizer/config.json", "decoder_config"),
    ],
)
def test_a_config_without_a_key_is_refused_by_name(folder: Path, file: str, key: str) -> None:
    config = json.loads((folder / file).read_text())
    del config[key]
    (folder / file).write_text(json.dumps(config))
    refuses(folder, f"lacks '{key}'")


def test_defaults_come_from_the_checkpoints_own_generation_config(folder: Path) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_sample": False, "subtalker_dosample": False}))
    with sonant.load(folder, device="cpu") as engine:
        a, b = (engine.speak("hello the world", seed=s, max_frames=10).frames for s in (1, 2))
    assert (a == b).all()


def test_devices_and_dtypes_are_checked(folder: Path) -> None:
    for options, says in (
        ({"device": "tpu"}, "tpu"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"device": "mps"}, "mps"),
    ):
        with pytest.raises(ConfigError, match=says):
            sonant.load(folder, **options)


def test_windows_cover_the_file_without_gaps() -> None:
    layout = {f"t{n}": ((1000,), mb << 20) for n, mb in enumerate([1, 300, 5, 100, 100])}
    pieces = [piece for window in weights.windows(layout) for piece in window]
    for name in layout:
        spans = [(start, end) for n, start, end in pieces if n == name]
        assert spans[0][0] == 0 and spans[-1][1] == 1000
        assert all(a[1] == b[0] for a, b in pairwise(spans))
    for window in weights.windows(layout):
        held = sum(layout[n][1] * (end - start) / 1000 for n, start, end in window)
        assert held <= weights.WINDOW_BYTES


MEASURE = """
import resource, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
folder = Path(sys.argv[1])
config = Qwen3TTSConfig.read(folder)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
load_modules(folder, config, torch.device("cpu"), torch.float32, torch.float32)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_loading_never_holds_the_weights_twice(folder: Path) -> None:
    rows = 4_000_000
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"]["text_vocab_size"] = rows  # 48 wide: 768 MB in float32, six windows
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    edit(path, lambda t: t.update({"talker.model.text_embedding.weight": torch.zeros(rows, 48)}))
    done = subprocess.run([sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 1.3 * path.stat().st_size
