"""The source of the convolutions' CUDA kernel, run on a CPU by `hopper_on_cpu.h`, computes what the reference does.

Tiles, lines, parts of weights, rings and barriers are all tested; a GPU's memory model is not.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.conv_cases import ConvCall, conv_call, exact_conv_call
from kernels.hopper_on_cpu import HopperOnCpu
from kernels.unit_cases import error_of
from sonant.kernels import reference
from sonant.kernels.cuda import compiler, conv
from sonant.kernels.cuda.compiler import build, find_compiler
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import Bounds, Snake

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_gradients")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
H200, A100, B200 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0)), Gpu("NVIDIA B200", (10, 0))
LAYOUTS = (conv.WIDE, conv._NARROW, conv._SHORT, conv._PANEL)
ERROR = 1e-2  # results were rounded to bfloat16 two to five times


@pytest.fixture
def on_cpu(hopper: HopperOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    hopper.take_over(monkeypatch)


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("layout", "shape", "options", "processors"),
    [
        (conv.WIDE, (128, 192, 7, 1, 300), {"dilation": 9}, 132),  # two tiles in a row, the second not full
        (conv.WIDE, (64, 384, 7, 2, 270), {"dilation": 3, "past": False}, 3),  # silence before; columns change
        (conv.WIDE, (64, 192, 7, 1, 54), {"dilation": 9, "snake": False}, 132),  # as many steps as it looks back
        (conv._NARROW, (128, 384, 2, 2, 257), {"samples": 2}, 1),  # columns are samples; one block has all tiles
        (conv._SHORT, (128, 192, 7, 5, 64), {}, 132),  # some runs of the second tile have no row
        (conv._SHORT, (64, 384, 2, 3, 100), {"samples": 2}, 1),
        (conv._SHORT, (64, 192, 7, 6, 50), {"past": False}, 2),
        (conv._PANEL, (192, 288, 2, 2, 257), {"samples": 3}, 6),  # two blocks for each panel
        (conv._PANEL, (192, 96, 2, 1, 64), {"snake": False}, 132),  # one tile, so two warpgroups have none
    ],
)
def test_it_is_the_reference(
    layout: conv.Layout, shape: tuple[int, ...], options: dict[str, Any], processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(conv, "PROCESSORS", processors)
    call = conv_call(*shape, **options, seed=sum(shape))
    assert refusal(call) is None
    for got, expected in zip(made(call, layout), exact_conv_call(call), strict=True):
        assert error_of(got, expected) < ERROR


def refusal(call: ConvCall) -> str | None:
    return conv.refusal(*call[:5], call.snake)


def made(call: ConvCall, layout: conv.Layout, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return conv.causal_conv(*call[:5], snake=call.snake, layout=layout, **options)


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
def test_what_nobody_wants_is_not_stored() -> None:
    call = conv_call(64, 192, 2, 1, 256)
    both, (nothing, active) = made(call, conv._NARROW), made(call, conv._NARROW, keep=False)
    assert nothing.numel() == 0 and torch.equal(active, both[1])


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("layout", "inputs", "taps", "dilation"),
    [(conv.WIDE, 64, 7, 9), (conv._NARROW, 64, 2, 1), (conv._SHORT, 64, 7, 1), (conv._PANEL, 192, 2, 1)],
)
def test_pieces_with_their_past_are_the_whole_to_the_bit(
    layout: conv.Layout, inputs: int, taps: int, dilation: int
) -> None:
    call = conv_call(inputs, 192, taps, 1, 600, dilation)
    whole = made(call, layout)
    assert call.past is not None
    history, before, pieces = call.past.shape[1], call.past, []
    for piece in call.x.split([260, 100, 240], dim=1):
        pieces.append(made(call._replace(x=piece.contiguous(), past=before), layout))
        before = torch.cat([before, piece], dim=1)[:, -history:]
    for n in range(2):
        assert torch.equal(torch.cat([piece[n] for piece in pieces], dim=1), whole[n])


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("layout", "shape", "options"),
    [
        (conv.WIDE, (64, 192, 7, 2, 300), {"dilation": 3}),
        (conv._NARROW, (64, 384, 2, 2, 300), {"samples": 2}),
        (conv._SHORT, (64, 384, 2, 7, 64), {"samples": 2}),
        (conv._PANEL, (192, 288, 2, 2, 257), {"samples": 3}),
    ],
)
def test_any_number_of_blocks_computes_the_same_bits(
    layout: conv.Layout, shape: tuple[int, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "PROCESSORS", 9)
    call = conv_call(*shape, **options)
    whole = made(call, layout)
    for processors in (3, 1):
        monkeypatch.setattr(conv, "PROCESSORS", processors)
        assert all(map(torch.equal, made(call, layout), whole))


@pytest.mark.parametrize(
    ("tiles", "panels", "blocks"),
    [(1000, 1, 132), (100, 1, 100), (3000, 5, 130)],  # the same number for each panel
)
def test_a_processor_has_one_block_at_most(tiles: int, panels: int, blocks: int) -> None:
    assert conv.resident_blocks(tiles, panels) == blocks


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no nvcc here")
def test_it_compiles_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for program in conv.programs():
        assert b"causal_conv" in build(program, 90).read_bytes()


def test_shared_memory_is_what_a_program_can_have() -> None:
    assert all(layout.shared_bytes <= 227 << 10 for layout in LAYOUTS)


def test_other_values_are_refused() -> None:
    call = conv_call(64, 192, 7, 2, 128, 9)
    assert refusal(call) is None
    x, past = call.x, call.past
    assert past is not None and call.snake is not None
    for reason, wrong in {
        "not all values are bfloat16": call._replace(x=x.float()),
        "no logarithms": call._replace(snake=call.snake._replace(log_scale=False)),
        "weights of 192 columns, 192 channels, and 32 inputs": call._replace(weight=call.weight[:, :32]),
        "weights of 160 columns": call._replace(weight=call.weight[:160]),
        "weights of 192 columns, 24 channels": call._replace(bias=call.bias[:24]),
        "their inputs last": call._replace(weight=call.weight.contiguous()),
        "looks back 60 steps": call._replace(dilation=10),
        "values are not in lines": call._replace(x=x.transpose(0, 1).contiguous().transpose(0, 1)),
        "came before is not in lines": call._replace(past=past.transpose(0, 1).contiguous().transpose(0, 1)),
    }.items():
        assert reason in (refusal(wrong) or "it takes it")


def planned(call: ConvCall, bounds: Bounds | None = None) -> bool:
    *given, residual, snake = (moved(part) for part in call)
    return conv.takes(*given, residual, snake, bounds)


def moved(part: Any) -> Any:
    if isinstance(part, Snake):
        return Snake(part.alpha.to("meta"), part.beta.to("meta"))
    return part.to("meta") if isinstance(part, torch.Tensor) else part


@pytest.mark.parametrize(
    ("shape", "dilation", "layout"),
    [
        ((768, 768, 7, 64, 512), 9, conv.WIDE),  # 64 rows of 16 frames, a codec's largest batch
        ((384, 384, 7, 64, 2560), 1, conv.WIDE),
        ((768, 1920, 2, 64, 512), 1, conv._NARROW),
        ((1024, 1536, 7, 64, 64), 1, conv._SHORT),
        ((1536, 6144, 2, 64, 64), 1, conv._SHORT),
        ((192, 288, 2, 64, 10240), 1, conv._PANEL),
        ((768, 768, 1, 64, 512), 1, None),  # Triton is as fast
        ((768, 768, 7, 64, 32), 3, None),  # one frame: too much of each tile is empty
        ((768, 768, 7, 8, 512), 3, None),  # too few tiles
        ((768, 768, 7, 34, 512), 3, None),  # few tiles are left for the second round
        ((192, 288, 2, 16, 640), 1, None),
        ((768, 768, 7, 64, 512), 10, None),  # looks back too far
        ((768, 160, 7, 999, 512), 1, None),
    ],
)
def test_layouts_are_where_they_were_fast(shape: tuple[int, ...], dilation: int, layout: conv.Layout | None) -> None:
    inputs, columns, taps, batch, steps = shape
    assert conv.layout_for(batch, steps, torch.empty(columns, inputs, taps, device="meta"), dilation) == layout


@pytest.mark.parametrize(("gpu", "takes"), [(H200, True), (A100, False), (B200, False), (None, False)])
def test_many_long_rows_on_hopper_are_taken(gpu: Gpu | None, takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_obstacle", lambda g: None if g == H200 else "another")
    call = conv_call(64, 192, 7, 1, 1)
    call = call._replace(x=torch.empty(264, 256, 64, dtype=torch.bfloat16, device="meta"), past=None)
    with planning_for(gpu) if gpu else nullcontext():
        assert planned(call) is takes
        assert not planned(call, Bounds(call.bias, call.bias))
        assert not planned(call._replace(residual=call.x))
        assert not planned(call._replace(x=call.x.float()))


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs compute capability 9.0" in (conv.obstacle(A100) or "")
    monkeypatch.setattr(compiler, "find", lambda program, arch: None)
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    assert "there is no nvcc" in (conv.obstacle(H200) or "")


def test_the_reason_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(conv, "_obstacle", cache(conv._obstacle.__wrapped__))
    call = conv_call(64, 192, 7, 1, 1)
    call = call._replace(x=torch.empty(264, 256, 64, dtype=torch.bfloat16, device="meta"), past=None)
    with planning_for(A100), caplog.at_level("INFO"):
        assert not any(planned(call) for _ in range(3))
    assert [r.getMessage() for r in caplog.records] == [
        "convolutions run in Triton, not in CUDA C++: it needs compute capability 9.0, and NVIDIA A100 has 8.0"
    ]


@pytest.mark.parametrize(("fault", "right"), [(0.0, True), (0.1, False), (float("nan"), False)])
def test_a_kernel_that_is_wrong_here_is_not_used(
    fault: float, right: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*given: Any, layout: conv.Layout, **options: Any) -> tuple[torch.Tensor, ...]:
        return tuple((1 + fault) * t for t in reference.causal_conv(*given, **options))

    monkeypatch.setattr(conv, "causal_conv", faulty)
    assert all(conv._is_right(layout, torch.device("cpu")) is right for layout in LAYOUTS)
    assert [r.levelname for r in caplog.records] == ([] if right else ["WARNING"] * len(LAYOUTS))
