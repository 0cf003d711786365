"""Scripts for a GPU (tests/gpu_*.py) put things in the place of ours, which must take the calls that ours get."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.against import DEVICE, close, random
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import Heads

pytest.importorskip("triton")
import gpu_layer
from sonant.kernels.triton import gemv, scaled_product

pytestmark = pytest.mark.usefixtures("no_gradients")

ROOT = Path(__file__).parents[2]
MYPY = """\
[mypy]
mypy_path = src:tests:.
check_untyped_defs = True
[mypy-transformers.*,voxcpm.*,soundfile.*,soxr.*,triton.*]
ignore_missing_imports = True
"""
WRONG = re.compile(r"error: .*\[(call-arg|attr-defined|name-defined)\]$")


@pytest.mark.parametrize("way", gpu_layer.folding([]))
def test_products_take_every_way_of_gpu_layer(way: str) -> None:
    x, gain, weight = random(96, 1, 64), torch.ones(64, device=DEVICE), random(64, 64, seed=1)
    expected = reference.norm_gated(x, gain, 1e-6, weight)
    with gpu_layer.patched(gpu_layer.folding([])[way]):
        for folded in (False, True):
            close(gemv.norm_gated(x, gain, 1e-6, weight, folded), expected, torch.float32)


def test_in_gpu_layer_widened_means_that_attention_hands_on_sixteen_bits_too() -> None:
    qkv, turns = (torch.empty(64, 1, *sizes, dtype=torch.bfloat16, device="meta") for sizes in ((4096,), (1, 128)))
    heads = Heads(None, None, turns, turns, 16, 8, 1e-6, bounded=True)
    handed = []
    for patches in gpu_layer.quantizing().values():
        with planning_for(Gpu("NVIDIA H200", (9, 0))), gpu_layer.patched(patches):
            handed.append(scaled_product.mixed_dtype(qkv, heads))
    assert handed == [torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16]


@pytest.mark.slow
def test_scripts_for_a_gpu_call_what_there_is_with_arguments_that_it_takes() -> None:
    """They run on a machine that is lent by the minute, which is no place to find that a function has changed."""
    scripts = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("gpu_*.py"))
    command = [sys.executable, "-m", "mypy", "--explicit-package-bases", "--config-file", "/dev/stdin", *scripts]
    done = subprocess.run(command, cwd=ROOT, input=MYPY, capture_output=True, text=True, timeout=300)
    assert "checked" in done.stdout, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("tests/gpu_") and WRONG.search(line)] == []
