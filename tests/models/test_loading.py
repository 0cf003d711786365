"""A checkpoint loads whole or not at all, and the error names what is wrong."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sonant
from clips import reference_clip
from peak_memory import needs_peak_memory, run_python
from sonant.config import EngineConfig
from sonant.errors import CheckpointError, ConfigError, Unsupported
from sonant.models.registry import check_model
from sonant.types import SpeechRequest

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


def shard(folder: Path, count: int = 2) -> list[Path]:
    """Cut a folder's model.safetensors into shards with an index, as the official package's writer does."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    names = list(tensors)
    paths = [folder / f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    places = {}
    for n, shard_path in enumerate(paths):
        mine = names[n::count]
        save_file({name: tensors[name] for name in mine}, shard_path)
        places |= dict.fromkeys(mine, shard_path.name)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return paths


def said(folder: Path) -> np.ndarray:
    with sonant.load(folder, device="cpu") as engine:
        return engine.speak("hello the world", seed=3, max_frames=6).samples


def test_a_sharded_folder_speaks_as_the_whole_one(folder: Path) -> None:
    whole = said(folder)
    shard(folder, 3)
    shard(folder / "speech_tokenizer", 2)
    np.testing.assert_array_equal(said(folder), whole)
    check_model(folder, EngineConfig(), torch.float32, torch.float32)


def test_a_shard_that_is_cut_short_or_missing_is_named(folder: Path) -> None:
    first, second = shard(folder)
    content = second.read_bytes()
    second.write_bytes(content[:-100])
    refuses(folder, "00002-of-00002.*not a whole safetensors file")
    second.unlink()
    refuses(folder, "00002-of-00002.safetensors is missing, though model.safetensors.index.json names it")
    (folder / "model.safetensors.index.json").unlink()
    refuses(folder, f"model.safetensors.index.json is missing.*{first.name}")


def fine_tune(base: Path, folder: Path, *, keep_encoder: bool) -> Path:
    """Make what the official fine-tuning script leaves: a copy of the Base folder that calls itself CustomVoice.

    Its config.json still has the speaker encoder's part, its weights no longer have it, and row 3000 of the codec's
    embedding is the new speaker.
    """
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    config["tts_model_type"] = "custom_voice"
    config["talker_config"] |= {"spk_id": {"anna": 3000}, "spk_is_dialect": {"anna": False}}
    (folder / "config.json").write_text(json.dumps(config))

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["talker.model.codec_embedding.weight"][3000] = torch.linspace(-1, 1, 64)
        for name in [n for n in tensors if n.startswith("speaker_encoder.") and not keep_encoder]:
            del tensors[name]

    edit(folder / "model.safetensors", change)
    return folder


@pytest.mark.parametrize("keep_encoder", [False, True])
def test_a_fine_tuned_folder_speaks_with_its_one_voice(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, keep_encoder: bool
) -> None:
    folder = fine_tune(tiny_checkpoints["base"], tmp_path / "tuned", keep_encoder=keep_encoder)
    with sonant.load(folder, device="cpu") as engine:
        assert engine.voices == ("anna",)
        assert len(engine.speak("hello the world", voice="anna", seed=3, max_frames=6).frames)
        with pytest.raises(Unsupported, match="cannot clone"):
            engine.clone(reference_clip(), None)


def test_a_fine_tuned_voice_may_have_capital_letters(few_codebooks: Mapping[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(few_codebooks["custom"], tmp_path / "tuned")
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"] |= {"spk_id": {"Anna": 3000}, "spk_is_dialect": {"Anna": "beijing_dialect"}}
    (folder / "config.json").write_text(json.dumps(config))
    with sonant.load(folder, device="cpu") as engine:
        assert engine.voices == ("Anna",)
        prompts = [engine.model.prompter.prompt(SpeechRequest(text="hi", voice=v)) for v in (None, "Anna", "anna")]
    for prompt in prompts:
        assert {3000, 2074} <= set(prompt.payload.codes[:, 0]), "the speaker, and the dialect that it speaks"


@pytest.mark.parametrize("kind", ["custom", "design"])
def test_a_speaker_encoder_that_is_not_needed_is_left_alone(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, kind: str
) -> None:
    folder = shutil.copytree(tiny_checkpoints[kind], tmp_path / "checkpoint")
    left = {f"speaker_encoder.{n}": torch.zeros(3) for n in ("fc.weight", "asp.conv.bias")}
    edit(folder / "model.safetensors", lambda t: t.update(left))
    check_model(folder, EngineConfig(), torch.float32, torch.float32)


def test_a_base_folder_needs_its_speaker_encoder(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_checkpoints["base"], tmp_path / "checkpoint")
    edit(folder / "model.safetensors", lambda t: t.pop("speaker_encoder.fc.weight"))
    refuses(folder, "lacks speaker_encoder.fc.weight")


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
        ("[" * 100_000, "cannot be read"),
        ('{"model_type": "llama"}', "'llama' is not one"),
    ):
        (tmp_path / "config.json").write_text(text)
        refuses(tmp_path, says)


def test_a_folder_that_cannot_be_looked_at_is_told_so() -> None:
    """As one inside another user's folder cannot; here its name is too long."""
    refuses(Path("a" * 300), "aaa cannot be opened: File name too long; give a folder")


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


@pytest.mark.parametrize("most", [0, -3])
def test_a_checkpoint_that_may_draw_nothing_is_refused(folder: Path, most: int) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": most}))
    refuses(folder, f"max_new_tokens must be at least 1, not {most}")


def test_devices_and_dtypes_are_checked(folder: Path) -> None:
    for options, says in (
        ({"device": "tpu"}, "tpu"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"device": "mps"}, "mps"),
    ):
        with pytest.raises(ConfigError, match=says):
            sonant.load(folder, **options)


MEASURE = """
import sys, torch
from pathlib import Path
from peak_memory import peak_bytes
torch.set_num_threads(1)
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
folder = Path(sys.argv[1])
config = Qwen3TTSConfig.read(folder)
with torch.device("meta"):
    torch.nn.Embedding(2, 2).to(torch.float32)  # the meta device imports much of torch, which is no weight
before = peak_bytes()
load_modules(folder, config, torch.device("cpu"), torch.float32, torch.float32)
print(peak_bytes() - before)
"""


@pytest.mark.slow
@needs_peak_memory
def test_loading_never_holds_the_weights_twice(folder: Path) -> None:
    rows = 4_000_000
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"]["text_vocab_size"] = rows  # 48 wide: 768 MB in float32, six windows
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    edit(path, lambda t: t.update({"talker.model.text_embedding.weight": torch.zeros(rows, 48)}))
    done = run_python(MEASURE, str(folder))
    assert int(done.stdout) < 1.3 * path.stat().st_size
