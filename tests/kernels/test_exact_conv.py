"""Our float32 convolutions are exact whatever the process allows (TF32), and the process's setting is left alone."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import sonant
from sonant.kernels import reference
from sonant.kernels.reference import exact_conv
from sonant.models.qwen3_tts.speaker import SameConv

SWITCHES = {"allow_tf32", "fp32_precision"}


@pytest.fixture(autouse=True)
def rounding_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


@pytest.fixture
def may_round(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each convolution's `allow_tf32`, in the order of the calls."""
    told: list[bool] = []
    plain = torch._convolution

    def noted(*args: Any, allow_tf32: bool) -> Tensor:
        told.append(allow_tf32)
        return plain(*args, allow_tf32=allow_tf32)

    monkeypatch.setattr(torch, "_convolution", noted)
    return told


CONVOLUTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "causal_conv": lambda x: reference.causal_conv(x, torch.ones(3, 8, 5), torch.ones(3), None, 2)[0],
    "strided": lambda x: reference.convolve(x, torch.ones(3, 8, 4), stride=2),
    "depthwise": lambda x: reference.depthwise(x, torch.ones(8, 1, 5), torch.ones(8), None, 3),
    "speaker": lambda x: SameConv(8, 4, 3, dilation=2)(x.mT),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_float32_convolution_of_ours_is_told_not_to_round(name: str, may_round: list[bool]) -> None:
    with torch.inference_mode():
        CONVOLUTIONS[name](torch.ones(2, 30, 8))
    assert may_round == [False]
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_trainers_convolution_stays_as_it_set_it(name: str, may_round: list[bool]) -> None:
    x = torch.ones(2, 30, 8, requires_grad=True)
    CONVOLUTIONS[name](x).sum().backward()
    assert may_round == [] and x.grad is not None


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_torchs_convolution(dims: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(dims)
    x, bias = torch.randn(2, 6, *[19] * dims, generator=g).to(dtype), torch.randn(4, generator=g).to(dtype)
    weight = torch.randn(4, 3, *[3] * dims, generator=g).to(dtype)
    plain = F.conv1d if dims == 1 else F.conv2d
    with torch.inference_mode():
        got = exact_conv(x, weight, bias, stride=[2] * dims, dilation=[3] * dims, groups=2)
        assert torch.equal(got, plain(x, weight, bias, 2, 0, 3, 2))


def test_the_speakers_convolution_is_torchs_own_with_reflected_ends() -> None:
    ours = SameConv(5, 3, 4, dilation=3)
    plain = torch.nn.Conv1d(5, 3, 4, dilation=3, padding="same", padding_mode="reflect")
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(ours(x), plain(x))


def test_loading_and_speaking_leave_the_processs_setting(
    tiny_checkpoints: Mapping[str, Path], may_round: list[bool]
) -> None:
    with sonant.load(tiny_checkpoints["custom"], device="cpu", codec_dtype="float32") as engine:
        engine.speak("Hi.", max_frames=2)
    assert torch.backends.cudnn.allow_tf32
    assert may_round and not any(may_round)


def test_nothing_of_ours_sets_such_a_switch() -> None:
    """Looked for in the source, since a machine without a GPU might never run it."""
    assert list(settings(Path(sonant.__file__).parent)) == []


def settings(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Attribute) and target.attr in SWITCHES for target in targets):
                yield f"{path}:{node.lineno}"
