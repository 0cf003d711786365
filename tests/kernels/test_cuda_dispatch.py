"""Which implementation of attention and of stacks runs where, and that the reason is logged."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.paged_cases import Shape, prefill_call, step_call
from kernels.stack_cases import StackCase
from sonant.cli import machine
from sonant.errors import ConfigError
from sonant.kernels import dispatch, ops, reference
from sonant.kernels.cuda import attention, compiler, stack
from sonant.kernels.cuda.kernel import CudaForm, CudaKernel
from sonant.kernels.gpu import Gpu, planning_for

pytest.importorskip("triton")
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded
from sonant.kernels.triton import paged

H200, A100 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0))
MODULES = {op: importlib.import_module(f"sonant.kernels.cuda.{file}") for op, file in dispatch.IN_CUDA.items()}
NVCC = compiler.Compiler("/somewhere/nvcc", "Build 1")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with a compiler, where nothing is compiled and no choice was made before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for module in MODULES.values():
        monkeypatch.delenv(module.VARIABLE, raising=False)
    monkeypatch.setattr(compiler, "find_compiler", lambda: NVCC)
    dispatch.choose.cache_clear()
    dispatch._tell.cache_clear()
    yield
    dispatch.choose.cache_clear()


def chosen(gpu: Gpu | None, op: str = "paged_step") -> tuple[str, str]:
    choice = dispatch.choose(op, "cuda", gpu=gpu)
    return choice.implementation, choice.reason


@pytest.mark.parametrize("op", sorted(dispatch.IN_CUDA))
def test_hopper_with_a_compiler_runs_our_own(op: str) -> None:
    assert chosen(H200, op)[0] == "cuda" and dispatch.choose(op, "cuda", gpu=H200).function is getattr(MODULES[op], op)
    assert dispatch.choose(op, "cuda", training=True, gpu=H200).implementation == "reference"
    assert dispatch.choose("rms_norm", "cuda", gpu=H200).implementation == "triton"


def test_an_older_gpu_runs_triton_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for op in sorted(dispatch.IN_CUDA):
            implementation, reason = chosen(A100, op)
            assert implementation == "triton" and "compute capability 9.0, and NVIDIA A100 has 8.0" in reason
    told = [record.getMessage() for record in caplog.records]
    expected = "a predictor's pass over one row", "a stack over few rows", "attention", "a stack's pass over one row"
    assert len(told) == len(expected) and all("8.0" in line for line in told)
    assert all(line.startswith(f"{what} runs") for line, what in zip(told, expected, strict=True))


def test_without_a_compiler_triton_runs_unless_all_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    monkeypatch.setattr(compiler, "SHIPPED", tmp_path)
    for op in ("frame_pass", "local_stack", "paged_pass", "paged_step"):
        implementation, reason = chosen(H200, op)
        assert implementation == "triton" and "there is no nvcc" in reason
        for program in MODULES[op].programs():
            (tmp_path / program.file_name(90)).write_bytes(b"code")
        dispatch.choose.cache_clear()
        assert chosen(H200, op)[0] == "cuda"


def test_what_a_compiler_refused_is_not_counted_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program = next(attention.programs())
    note = compiler._note_path(program, 90)
    note.parent.mkdir(parents=True)
    compiler._note(note, NVCC, "line 7:\n  what is this?")
    implementation, reason = chosen(H200)
    assert implementation == "triton" and "line 7: what is this?" in reason


@pytest.mark.parametrize("op", ["paged_step", "local_stack", "frame_pass", "paged_pass"])
def test_the_environment_can_ask_for_one(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = MODULES[op].VARIABLE
    for asked, implementation in (("triton", "triton"), ("torch", "reference"), ("CUDA", "cuda"), ("auto", "cuda")):
        monkeypatch.setenv(variable, asked)
        dispatch.choose.cache_clear()
        assert chosen(H200, op)[0] == implementation
    monkeypatch.setenv(variable, "cuda")
    with pytest.raises(ConfigError, match=r"asks for .+ in CUDA C\+\+, but it needs compute capability"):
        chosen(A100, op)
    monkeypatch.setenv(variable, "flash")
    with pytest.raises(ConfigError, match="one of auto, cuda, triton, torch, not 'flash'"):
        chosen(Gpu("NVIDIA H100", (9, 0)), op)


@pytest.mark.parametrize(("gpu", "implementation"), [(H200, "cuda"), (A100, "triton")])
def test_doctor_tells_which_attention_runs_and_why(
    gpu: Gpu, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(machine, "gpu_of", lambda device: gpu if device.type == "cuda" else None)
    told = {k.op: k for k in machine.this_machine().kernels if k.device == "cuda"}
    assert {told[op].implementation for op in dispatch.IN_CUDA} == {implementation}
    assert all("CUDA C++" in told[op].reason and "NVIDIA" in told[op].reason for op in dispatch.IN_CUDA)
    assert told["rms_norm"].implementation == "triton"


SHAPE = Shape(16, 8, 128, 16, (20, 3), 4, False, True, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"cache": torch.zeros(2, 4, 16, 8, 128).to(torch.float8_e4m3fn)}, None),
        ({"cache": torch.zeros(2, 4, 16, 8, 128).to(torch.float8_e5m2)}, "the cache is torch.float8_e5m2"),
        ({"values": torch.zeros(1)}, "values are torch.float32"),
        ({"cache": torch.zeros(2, 4, 16, 8, 128)}, "the cache is torch.float32"),
        ({"cache": torch.zeros(2, 4, 16, 8, 32).bfloat16()}, "heads have 32 values"),
        ({"cache": torch.zeros(2, 4, 16, 16, 128).bfloat16()[:, :, :, ::2]}, "not in one piece"),
        ({"heads": 17}, "17 heads over 8"),
        ({"heads": 8 * 17}, "at most 16"),
        ({"tables": torch.zeros(2, 4).long()}, "tables are torch.int64"),
        ({"tables": torch.zeros(2, 8).int()[:, ::2]}, "not in one piece"),
        ({"positions": torch.zeros(2, 1).short()}, "positions torch.int16"),
        ({"cache": torch.zeros(2, 1, 1 << 16, 1, 64).bfloat16()}, "too large"),
    ],
)
def test_what_the_kernels_take(change: dict[str, Any], reason: str | None) -> None:
    taken = {
        "values": torch.zeros(1).bfloat16(), "heads": 16, "cache": torch.zeros(2, 4, 16, 8, 128).bfloat16(),
        "tables": torch.zeros(2, 4).int(), "positions": torch.zeros(2, 1).long(),
    }  # fmt: skip
    told = attention.refusal(**(taken | change))
    assert (told is None) if reason is None else reason in (told or "")


def test_what_they_do_not_take_goes_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both values of another type, and all values while the kernels are not built."""
    monkeypatch.setattr(paged, "paged_attention", lambda *args: "triton's prefill")
    monkeypatch.setattr(paged, "paged_step", lambda *args: "triton's step")
    q, cache, *rest = prefill_call(SHAPE, 1, "cpu")
    assert attention.paged_attention(q.float(), cache.float(), *rest) == "triton's prefill"
    qkv, heads, cache, *rest = step_call(SHAPE, 1, "cpu")
    assert attention.paged_step(qkv.float(), heads, cache.float(), *rest) == "triton's step"
    monkeypatch.setattr(CudaKernel, "is_ready", lambda self, device: False)
    assert attention.paged_step(qkv, heads, cache, *rest) == "triton's step"


@pytest.mark.parametrize("kv_bytes", [2, 1])
def test_steps_that_are_rehearsed_tell_which_programs_they_need(kv_bytes: int) -> None:
    """Through the dispatcher, on tensors without memory: each program once, and no kernel of Triton's in its place."""
    found: list[AnyForm] = []
    recorder = LaunchRecorder(H200, found.append)
    shape = replace(SHAPE, eight=kv_bytes == 1)
    meta = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in step_call(shape, 1, "cpu")]
    heads = reference.Heads(*(t.to("meta") if isinstance(t, torch.Tensor) else t for t in meta[1]))
    prefill = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in prefill_call(shape, 1, "cpu")]
    with torch.inference_mode(), planning_for(H200), launches_recorded(recorder):
        for _ in range(2):
            assert ops.paged_step(meta[0], heads, *meta[2:]).shape == (2, 1, 16, 128)
            assert ops.paged_attention(*prefill).shape == (2, 4, 16, 128)
    programs = [form.program for form in found if isinstance(form, CudaForm)]
    expected = attention.decode_kernel(128, attention.FORMS[0], kv_bytes), attention.prefill_kernel(128, 64, kv_bytes)
    assert programs == [kernel.program for kernel in expected]
    assert len(found) == 2


def test_a_stack_that_is_rehearsed_tells_which_program_it_needs() -> None:
    found: list[AnyForm] = []
    case = StackCase(1024, 4096, 16, 2, 2, 2, 11)

    def on_meta(weights: reference.LocalWeights) -> reference.LocalWeights:
        heads = weights.heads._replace(cos=weights.heads.cos.to("meta"), sin=weights.heads.sin.to("meta"))
        tensors = [value.to("meta") for value in weights if isinstance(value, torch.Tensor)]
        return reference.LocalWeights(*tensors[:2], heads, *tensors[2:])

    layers = [on_meta(weights) for weights in case.weights(1)]
    rows = [case.rows(1).to("meta")] * 2 + [case.rows(1)[:1, :5].contiguous().to("meta")]
    with torch.inference_mode(), planning_for(H200), launches_recorded(LaunchRecorder(H200, found.append)):
        for x in rows:
            assert ops.local_stack(x, layers).shape == x.shape
    assert [form.program for form in found if isinstance(form, CudaForm)] == [*reversed(list(stack.programs()))]
    assert len(found) == 2


def test_blocks_for_a_row() -> None:
    """Blocks share a row as long as they have room and their shares are long enough: there is room for one block on a
    processor or, if that leaves more than a quarter of them idle, four. Rows that fill the GPU are not shared."""
    assert attention.splits_for(512, 4096) == 1 and attention.splits_for(4096, 4096) == 1
    assert attention.splits_for(8, 8192) == 16 and attention.splits_for(8, 256) == 1
    assert attention.splits_for(1, 1 << 20) == 64
    assert [attention.splits_for(groups, 8192) for groups in (32, 64, 68, 98, 99, 128, 132, 136)] == [
        4, 2, 7, 5, 1, 1, 1, 3,
    ]  # fmt: skip
    for groups in range(1, 600):
        blocks = groups * attention.splits_for(groups, 1 << 20)
        assert blocks >= min(64 * groups, 99) and (blocks <= 528 or blocks == groups)


def test_what_a_block_of_a_step_is() -> None:
    """It depends on rows only, since graphs serve every length: the fewer blocks, the more each has in flight."""
    forms = {rows: attention.form_for(8 * rows, attention.splits_for(8 * rows, 4096)) for rows in range(1, 600)}
    assert {forms[n] for n in (1, 2, 4, 8)} == {attention.ALONE} and forms[16] == attention.PAIR
    assert {forms[n] for n in range(17, 34)} == {attention.WIDE} and forms[34] == attention.NARROW
    assert [forms[n] for n in (64, 66, 128, 132)] == [attention.NARROW] * 4  # nearly full waves of four a processor
    assert [forms[n] for n in (72, 96)] == [attention.SMALL] * 2
    assert {forms[n] for n in range(133, 600)} == {attention.SMALL}
    assert attention.form_for(8, 16, kv_bytes=1) == attention.PAIR
    assert attention.helpers_for(264, 4096) == attention.helpers_for(512, 512) == 0
    assert [attention.helpers_for(8 * rows, 4096) for rows in (64, 96, 128, 256)] == [3, 6, 3, 6]
    for form, dim in product(attention.FORMS, (64, 128)):
        assert form.resident * (form.shared_bytes(dim, 8) + 1024) <= 228 << 10


def test_more_than_eight_heads_over_one_have_a_program_of_their_own() -> None:
    one, eight, nine, sixteen = (
        attention.decode_kernel(128, attention.FORMS[0], 2, share).program for share in (1, 8, 9, 16)
    )
    assert one == eight != nine == sixteen
    assert {eight, sixteen} <= set(attention.programs())


@pytest.mark.parametrize("block", [1, 2, 3, 4, 7, 12, 16, 100, 256, 1000, 4096])
def test_the_quotient_by_a_blocks_positions_is_exact(block: int) -> None:
    factor = attention.magic(block)
    most = min(1 << 20, (1 << 32) // block - 1)
    for at in {*range(5000), *range(most - 5000, most), *range(block - 1, most, 9973)}:
        if 0 <= at < most:
            assert (at if factor == 0 else (at * factor) >> 32) == at // block
