"""Loading Higgs Audio V2 takes memory for its weights once, and for a window of their file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from models.test_higgs_loading import CODEC, TEXT_HEAD, edit, rewrite
from peak_memory import needs_peak_memory, run_python
from sonant.models.higgs_audio_v2.synthetic.presets import codec_config
from sonant.models.higgs_audio_v2.synthetic.shapes import codec_shapes
from sonant.models.weights.load import WINDOW_BYTES

MEASURE = """
import sys, torch
from pathlib import Path
from peak_memory import peak_bytes
torch.set_num_threads(1)
from sonant import EngineConfig
from sonant.models.registry import check_model, load_model
folder, config, codec_dtype = Path(sys.argv[1]), EngineConfig(), getattr(torch, sys.argv[2])
weights = check_model(folder, config, torch.float32, codec_dtype).weight_bytes
before = peak_bytes()
model = load_model(folder, config, torch.device("cpu"), torch.float32, codec_dtype)
print(peak_bytes() - before - weights)
"""


@pytest.fixture
def folder(tiny_higgs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_higgs, tmp_path / "model", copy_function=os.link)


@pytest.mark.slow
@needs_peak_memory
def test_loading_holds_the_weights_and_a_window(folder: Path) -> None:
    rows = 700_000  # 96 numbers each: 269 MB, two windows
    edit(folder / "config.json", {"vocab_size": rows})
    big = {"model.embed_tokens.weight": torch.zeros(rows, 96)}
    rewrite(folder / "model.safetensors", lambda t: (t.pop(TEXT_HEAD), t.update(big)))
    over = int(run_python(MEASURE, str(folder), "float32").stdout)
    assert over < 1.3 * WINDOW_BYTES


@pytest.mark.slow
@needs_peak_memory
def test_a_codec_is_halved_piece_by_piece(folder: Path) -> None:
    """It is stored and loaded in float32 and rounded at the end, at most one convolution at a time."""
    config = codec_config("tiny", "transformers")
    config["acoustic_model_config"]["decoder_hidden_size"] = 2048
    edit(folder / CODEC / "config.json", config)
    wide = {n: torch.zeros(s) for n, s in codec_shapes(config).items() if n.startswith("acoustic_decoder.")}
    rewrite(folder / CODEC / "model.safetensors", lambda t: t.update(wide))
    whole = sum(tensor.nbytes for tensor in wide.values())
    largest = max(tensor.nbytes for tensor in wide.values())
    over = int(run_python(MEASURE, str(folder), "bfloat16").stdout)
    assert over < whole / 2 + 1.6 * largest  # whose layout changes in copies of half its size
