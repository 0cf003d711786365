"""Random Higgs checkpoints have the published layouts, and are the same on every machine and in either form."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from published_names import published
from sonant.errors import CheckpointError
from sonant.layers.rope import scaled
from sonant.models.higgs_audio_v2.config import HiggsConfig
from sonant.models.higgs_audio_v2.synthetic.first_form import codec_tensors, language_model_name
from sonant.models.higgs_audio_v2.synthetic.presets import Form, codec_config
from sonant.models.higgs_audio_v2.synthetic.shapes import codec_shapes, language_model_shapes
from sonant.models.higgs_audio_v2.synthetic.vocabulary import SPECIALS
from sonant.models.higgs_audio_v2.synthetic.writer import write_checkpoint, write_configs
from sonant.models.weights.folder import open_weights
from sonant.models.weights.pickled import PickledTensors

BLOCKS = 5  # in the acoustic encoder, and in the decoder
EOS_ROWS = slice(1025, None, 1026)  # of the audio head


@pytest.fixture(scope="module")
def first_form(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as Boson published it: shards with their index, and a pickle in a folder of its own."""
    folder = tmp_path_factory.mktemp("boson") / "model"
    write_checkpoint(folder, form="boson", codec_form="boson", codec_folder=folder.parent / "codec")
    return folder


@pytest.mark.parametrize("form", ["transformers", "boson"])
def test_the_language_model_has_the_published_tensors(tmp_path: Path, form: Form) -> None:
    shapes = language_model_shapes(write_configs(tmp_path, size="3b", form=form))
    assert sum(prod(shape) for shape in shapes.values()) == 5_771_283_456
    assert shapes == published("higgs_3b")
    assert {language_model_name(n): s for n, s in shapes.items()} == published("higgs_3b_first_form")


def test_the_codec_has_the_published_tensors() -> None:
    shapes = codec_shapes(codec_config("3b", "transformers"))
    assert shapes == published("higgs_codec")
    drawn = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    pickled = {name: tuple(tensor.shape) for name, tensor in codec_tensors(drawn, BLOCKS).items()}
    assert pickled == published("higgs_codec_first_form")


@pytest.mark.parametrize(
    ("file", "total", "magnitude"),
    [("model", 6822.018, 378351.9723), ("audio_tokenizer/model", 5105.1349, 316645.6587)],
)
def test_weights_are_those_the_golden_files_were_made_from(
    tiny_higgs: Path, file: str, total: float, magnitude: float
) -> None:
    tensors = load_file(tiny_higgs / f"{file}.safetensors").values()
    assert sum(t.double().sum().item() for t in tensors) == pytest.approx(total, abs=1e-3)
    assert sum(t.double().abs().sum().item() for t in tensors) == pytest.approx(magnitude, abs=1e-3)


def test_both_forms_hold_the_same_language_model(tiny_higgs: Path, first_form: Path) -> None:
    whole, shards = load_file(tiny_higgs / "model.safetensors"), open_weights(first_form)
    assert set(shards.tensors) == {language_model_name(name) for name in whole}
    with shards.window() as read:
        for name, tensor in whole.items():
            assert torch.equal(read(language_model_name(name), 0, len(tensor)), tensor)
    index = json.loads((first_form / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 3
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in whole.values())


def test_both_forms_hold_the_same_codec(tiny_higgs: Path, first_form: Path) -> None:
    whole = load_file(tiny_higgs / "audio_tokenizer" / "model.safetensors")
    pickled = PickledTensors(first_form.parent / "codec" / "model.pth")
    expected = codec_tensors(whole, BLOCKS)
    assert set(pickled.tensors) == set(expected)
    with pickled.window() as read:
        for name in (n.removesuffix("_g") for n in expected if n.endswith("weight_g")):
            magnitude, direction = (read(f"{name}_{half}", 0, 10**6) for half in "gv")
            weight = magnitude * direction / direction.flatten(1).norm(dim=1)[:, None, None]
            assert not torch.allclose(direction, weight, rtol=0.5, atol=0.0)  # a loader must use both
            stored = expected[f"{name}_v"] / 3
            torch.testing.assert_close(weight, stored, rtol=1e-5, atol=1e-7)


def test_both_forms_describe_the_same_model(tiny_higgs: Path, first_form: Path) -> None:
    ours, bosons = HiggsConfig.read(tiny_higgs), HiggsConfig.read(first_form)
    assert ours.llama == bosons.llama
    assert (ours.codebook_size, ours.stream_eos, ours.audio_token_id) == (1026, 1025, 272)
    assert (bosons.codebook_size, bosons.stream_eos, bosons.audio_token_id) == (1026, 1025, 272)
    frequencies = 500_000.0 ** -torch.arange(0, 1, 1 / 64, dtype=torch.float64)
    assert ours.rope != bosons.rope
    torch.testing.assert_close(scaled(frequencies, ours.rope), scaled(frequencies, bosons.rope))


def test_special_tokens_have_the_published_ids(tmp_path: Path, tiny_higgs: Path) -> None:
    write_configs(tmp_path, size="3b")
    for folder, first in ((tmp_path, 128_000), (tiny_higgs, 256)):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert [tokenizer.token_to_id(token) for token in SPECIALS] == list(range(first, first + 28))
        assert tokenizer.encode("é<SE>", add_special_tokens=False).ids == [0xC3, 0xA9, first + 22]
        assert tokenizer.encode("a").ids == [first, 97]  # adds a special token by default, like the published file
    assert HiggsConfig.read(tmp_path).audio_token_id == 128_016


def test_a_real_tokenizer_is_taken_whole_or_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    write_configs(real, size="3b")
    write_configs(tmp_path / "model", size="3b", tokenizer_from=real)
    assert (tmp_path / "model/tokenizer.json").read_bytes() == (real / "tokenizer.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"nowhere/tokenizer\.json is missing"):
        write_configs(tmp_path / "other", size="3b", tokenizer_from=tmp_path / "nowhere")
    (real / "tokenizer.json").write_text('{"added_tokens": [{"content": "<SE>", "id": 3}]}')
    with pytest.raises(CheckpointError, match=r"lacks <\|begin_of_text\|>"):
        write_configs(tmp_path / "other", size="3b", tokenizer_from=real)


def test_speech_ends_by_chance_or_never(tmp_path: Path, tiny_higgs: Path) -> None:
    """The logit of EOS can be made to depend only on a dimension that is constant, so that no state of the model ends
    speech."""
    write_checkpoint(tmp_path, end=(0.0, -40.0))
    never, usual = (
        load_file(f / "model.safetensors")["audio_lm_head.weight"][EOS_ROWS] for f in (tmp_path, tiny_higgs)
    )
    assert never.shape == usual.shape == (8, 96)
    assert (never[:, 0] == -40.0).all() and not never[:, 1:].any()
    assert usual[:, 1:].all()
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            assert not tensor[0].any()
        elif "embed" in name:
            assert (tensor[:, 0] > 0).all()


def test_weights_can_be_stored_in_half_precision_while_the_codec_stays_whole(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, dtype=torch.bfloat16)
    for file, dtype in (("model", "BF16"), ("audio_tokenizer/model", "F32")):
        with safe_open(tmp_path / f"{file}.safetensors", "pt") as f:
            assert {f.get_slice(name).get_dtype() for name in f.keys()} == {dtype}  # noqa: SIM118


@pytest.mark.parametrize("file", ["model.safetensors", "model.safetensors.index.json", "audio_tokenizer/model.pth"])
def test_a_checkpoint_is_never_overwritten(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"precious")
    with pytest.raises(CheckpointError, match=f"already holds a {Path(file).name}"):
        write_checkpoint(tmp_path)
    assert (tmp_path / file).read_bytes() == b"precious"
