"""`sonant bench kernels`: every op has cases at the published shapes, and a CPU says that it has nothing to compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sonant.bench.kernels.case import Case
from sonant.bench.kernels.cases import Cases
from sonant.bench.kernels.codec_cases import CodecCases
from sonant.bench.kernels.versus_torch import Ceiling, measure
from sonant.cli.main import main
from sonant.config import Quantization
from sonant.kernels import reference
from sonant.kernels.dispatch import OPS
from sonant.kernels.reference import QuantizedWeight
from sonant.models.qwen3_tts import workload
from sonant.models.voxcpm2 import workload as voxcpm2
from sonant.models.workload import CodecWorkload, StackWorkload, Workloads

CPU = torch.device("cpu")
# ops that Qwen3-TTS does not use: see test_any_familys_workloads_can_be_measured
OF_OTHER_FAMILIES = {
    "dual_norm", "dual_norm_gated", "dual_linear_add", "ras_sample", "delay_step", "local_attention",
    "local_attention_add", "local_stack", "flow_open", "flow_move", "flow_turn", "normals", "add_norm", "swiglu",
    "patch_step",
}  # fmt: skip


def test_every_op_has_cases_that_run() -> None:
    seen = set()
    for case in Cases(CPU, torch.float32).every(workload.workloads(["0.6b"]), [2], prefill=24):
        call = case.make()
        with torch.inference_mode():
            getattr(reference, case.op)(*call.args, **call.kwargs)
        assert case.bytes >= case.streamed_bytes
        seen.add(case.op)
    assert seen == set(OPS) - OF_OTHER_FAMILIES


def test_shapes_are_those_of_the_releases() -> None:
    small, large, predictor = workload.workloads(["0.6b", "1.7b"]).stacks
    assert (small.hidden, small.inner, small.qkv, small.vocab) == (1024, 3072, 4096, 3072)
    assert (large.hidden, large.inner, large.qkv, large.vocab) == (2048, 6144, 4096, 3072)
    assert (predictor.hidden, predictor.context, predictor.vocab) == (1024, 16, 2048)


def test_any_familys_workloads_can_be_measured() -> None:
    """The cases know a model only by the numbers of its workload."""
    waves = StackWorkload(
        "waves", 32, 48, 4, 2, 16, vocab=32, context=7, per_frame=True, draws=False, tokens=14, patch=(2, 8),
        head_norms=False,
    )  # fmt: skip
    stacks = (
        StackWorkload("words", 32, 48, 4, 2, 16, vocab=40, context=20, per_frame=False),
        StackWorkload("details", 16, 32, 2, 2, 16, vocab=24, context=6, per_frame=True),
        StackWorkload("both", 32, 48, 4, 2, 16, vocab=40, context=20, per_frame=False, dual=True, codebooks=4),
        waves,
    )
    codec = CodecWorkload(
        "vocoder", heads=2, head_dim=16, window=5, latent=12, channels=16, steps_per_frame=3, upsample_rates=(2, 4),
        samples_per_frame=24,
    )  # fmt: skip
    cases = list(Cases(CPU, torch.float32).every(Workloads(stacks, codec, uniforms=6), [3], prefill=9))
    for case in cases:
        call = case.make()
        with torch.inference_mode():
            expected = getattr(reference, case.op)(*call.args, **call.kwargs)
            if case.usual is not None:
                torch.testing.assert_close(case.usual(*call.args, **call.kwargs), expected, rtol=1e-5, atol=1e-5)
    rows = {(case.op, case.where, case.rows) for case in cases}
    assert {("norm_linear", "words qkv", 9), ("paged_step", "words 20 positions", 3)} <= rows
    assert ("short_attention", "details position 3", 3) in rows and ("norm_linear", "details qkv", 9) not in rows
    assert {("causal_conv", "vocoder 8 × 24", 3), ("causal_conv", "vocoder 4 × 96", 3)} <= rows
    assert {(op, rows) for op, where, rows in rows if where.startswith("both") and op in OF_OTHER_FAMILIES} == {
        ("dual_norm", 9), ("dual_norm_gated", 9), ("dual_linear_add", 9), ("ras_sample", 3), ("delay_step", 3),
    }  # fmt: skip
    assert {(op, where, rows) for op, where, rows in rows if where.startswith("waves")} == {
        ("norm_linear", "waves qkv", 42), ("linear_add", "waves o", 42), ("norm_gated", "waves gate, up", 42),
        ("linear_add", "waves down", 42), ("rms_norm", "waves norm", 42),
        ("local_attention", "waves 7 positions", 3), ("local_attention_add", "waves 7 positions", 3),
        ("local_stack", "waves 4 layers", 3),
        ("add_norm", "waves sum, norm", 3), ("swiglu", "waves gate", 3),
        *((op, "waves 2 × 8", 3) for op in ("flow_open", "flow_move", "flow_turn", "patch_step")),
    }  # fmt: skip
    assert {case.op for case in cases} == set(OPS)


def test_a_depthwise_codec_has_no_wide_convolution_but_the_last() -> None:
    codec = CodecWorkload(
        "vocoder", heads=0, head_dim=0, window=0, latent=12, channels=16, steps_per_frame=3, upsample_rates=(2, 4),
        samples_per_frame=24, depthwise=True,
    )  # fmt: skip
    cases = [case for case in CodecCases(CPU, torch.bfloat16).every(codec, 2) if case.op != "pcm16"]
    made = {}
    for case in cases:
        call = case.make()
        with torch.inference_mode():
            result = getattr(reference, case.op)(*call.args, **call.kwargs)
        taps = call.args[1].shape[2]
        made[case.where] = (case.op, taps, tuple((result if case.op == "depthwise" else result[1]).shape))
        assert call.args[3] is None or call.args[3].shape[1] == (taps - 1) * call.args[4]
    assert made == {
        "vocoder 12 × 12": ("depthwise", 7, (2, 12, 12)), "vocoder first": ("causal_conv", 1, (2, 12, 16)),
        "vocoder up 8 × 24": ("causal_conv", 2, (2, 12, 2 * 8)),
        "vocoder 8 × 24": ("depthwise", 7, (2, 24, 8)), "vocoder point 8 × 24": ("causal_conv", 1, (2, 24, 8)),
        "vocoder up 4 × 96": ("causal_conv", 2, (2, 24, 4 * 4)),
        "vocoder 4 × 96": ("depthwise", 7, (2, 96, 4)), "vocoder point 4 × 96": ("causal_conv", 1, (2, 96, 4)),
        "vocoder last": ("causal_conv", 7, (2, 96, 1)),
    }  # fmt: skip
    wide = {case.op for case in CodecCases(CPU, torch.bfloat16).every(replace(codec, depthwise=False), 2)}
    assert wide == {"snake_beta", "causal_conv", "residual_unit", "pcm16"}


def test_layers_of_a_pass_know_whose_cache_they_have() -> None:
    """Counters of shared rows belong to the whole cache: a view's could be freed while a graph still counts in them."""
    cases = Cases(CPU, torch.float32).every(workload.workloads(["0.6b"]), [2], prefill=0)
    with torch.inference_mode():
        cache = next(case for case in cases if case.op == "paged_pass").make().args[4]
        assert cache[0]._base is cache


def test_units_have_eight_bits_where_a_quantised_codec_has_them() -> None:
    codec = CodecWorkload(
        "codec", heads=0, head_dim=0, window=0, latent=8, channels=1536, steps_per_frame=1, upsample_rates=(2, 2, 2, 2),
        samples_per_frame=16, depthwise=False,
    )  # fmt: skip

    def units(quantize: Quantization | None) -> dict[str, Case]:
        every = CodecCases(CPU, torch.bfloat16, quantize).every(codec, 1)
        return {case.where: case for case in every if case.op == "residual_unit"}

    wide, eight = units(None), units("fp8")
    assert [*wide] == ["codec unit 192 × 32", "codec unit 96 × 64"]
    assert [*eight] == ["codec unit 768 × 8", "codec unit 384 × 16", *wide]
    given = [case.make().args[2].int8 for case in eight.values()]
    assert [weight and weight.values.shape for weight in given] == [(n, n, 7) for n in (768, 384, 192)] + [None]
    assert eight["codec unit 192 × 32"].streamed_bytes == (7 + 2) * 192**2 < wide["codec unit 192 × 32"].streamed_bytes
    assert eight["codec unit 96 × 64"].bytes == wide["codec unit 96 × 64"].bytes


def test_a_flows_rows_are_pairs_of_eleven_tokens() -> None:
    """At the published shapes of VoxCPM2, whose codec makes a whole patch of samples for each frame."""
    told = voxcpm2.workloads(["2b"])
    language, flow = told.stacks
    assert (language.hidden, language.inner, language.qkv, language.draws) == (2048, 6144, 2560, False)
    assert (flow.hidden, flow.inner, flow.qkv, flow.tokens, flow.context) == (1024, 4096, 2560, 22, 11)
    assert told.codec.samples_per_frame == 7680 and told.uniforms == 4 * 64
    cases = {case.op: case for case in Cases(CPU, torch.float32).every(replace(told, stacks=(flow,)), [3], prefill=0)}
    assert cases["local_attention"].make().args[0].shape == (6, 11, 2560)
    assert cases["local_attention_add"].streamed_bytes == 4 * 2048 * 1024
    assert cases["flow_turn"].make().args[1].shape == (6, 11, 1024)
    assert cases["flow_turn"].streamed_bytes == 4 * 2 * 64 * 1024
    assert cases["norm_gated"].flops == 2 * 66 * 2 * 1024 * 4096
    assert "sample" not in cases and "linear" not in cases
    assert "local_stack" not in cases  # none for 66 tokens
    few = {case.op: case for case in Cases(CPU, torch.float32).every(replace(told, stacks=(flow,)), [1], prefill=0)}
    assert few["local_stack"].streamed_bytes == 4 * 4 * 1024 * (2560 + 2048 + 3 * 4096)


def test_the_floor_is_bytes_for_one_row_and_arithmetic_for_many() -> None:
    ceiling = Ceiling(bytes_per_s=4e12, flops_per_s=800e12)
    cases = Cases(CPU, torch.bfloat16)
    floors = {}
    for rows in (1, 4096):
        case = cases._product("linear", "x", rows, 2048, 4096)
        floors[rows] = ceiling.floor_us(case)
        assert case.flops == 2 * rows * 2048 * 4096
    weights_us = 1e6 * 2 * 2048 * 4096 / 4e12
    assert floors[1] == pytest.approx(weights_us, rel=0.01)
    assert floors[4096] == pytest.approx(1e6 * 2 * 4096 * 2048 * 4096 / 800e12)


def test_a_two_sided_layer_reads_both_sides_weights_and_multiplies_each_row_once() -> None:
    stack = StackWorkload("both", 3072, 8192, 24, 8, 128, vocab=8208, context=300, per_frame=False, dual=True)
    cases = {case.op: case for case in Cases(CPU, torch.bfloat16)._dual(stack, 30)}
    both = 2 * 2 * 3072 * 8192
    assert cases["dual_linear_add"].streamed_bytes == both and cases["dual_norm_gated"].streamed_bytes == 2 * both
    assert cases["dual_linear_add"].flops == 2 * 30 * 3072 * 8192


def test_quantised_weights_are_half_the_bytes_and_heads_stay() -> None:
    stack = StackWorkload("talker", 256, 512, 4, 2, 64, vocab=300, context=30, per_frame=False)
    plain, made = (
        {case.where: case for case in Cases(CPU, torch.bfloat16, kind)._products(stack, 4)} for kind in (None, "fp8")
    )
    for where in ("talker qkv", "talker o", "talker gate, up", "talker down"):
        weight = next(a for a in made[where].make().args if isinstance(a, QuantizedWeight))
        assert made[where].streamed_bytes == weight.values.nbytes + weight.scale.nbytes
        assert 0.5 < made[where].streamed_bytes / plain[where].streamed_bytes < 0.51
    assert made["talker head"].streamed_bytes == plain["talker head"].streamed_bytes


def test_weights_come_from_memory_and_not_from_a_cache() -> None:
    case = Cases(CPU, torch.float32)._product("linear", "x", 1, 1024, 3072)
    first, second = case.make(), case.make()
    assert first.args[0] is second.args[0]  # activations may be in a cache, as the kernel before has just written them
    assert first.args[1].data_ptr() != second.args[1].data_ptr()
    timed = measure(case, CPU, Ceiling(1e10, 1e11))
    assert timed.picked == "reference" and timed.kernel_us is None and timed.speed_up is None
    assert timed.reference_us > 0 and any("mm" in name or "linear" in name for name in timed.launches)


def test_on_a_cpu_it_prints_the_reference_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    options = ["--rows", "1,2", "--size", "0.6b", "--device", "cpu", "--out", str(out)]
    assert main(["bench", "kernels", "--ops", "rms_norm,sample,dual_norm", *options]) == 0
    shown, told = capsys.readouterr()
    assert "nothing was measured for dual_norm: no model uses it at these --size, --rows and --prefill" in told
    assert "rms_norm: reference, there are no kernels for cpu" in shown and "The reference only" in shown
    times = json.loads(out.read_text())["times"]
    assert {(t["op"], t["where"], t["rows"]) for t in times} == {
        (op, where, rows)
        for rows in (1, 2)
        for op, where in (
            ("rms_norm", "talker 0.6b norm"), ("rms_norm", "predictor norm"),
            ("sample", "talker 0.6b code"), ("sample", "predictor code"),
        )
    }  # fmt: skip
    assert all(t["reference_us"] > 0 and t["share_of_floor"] > 0 for t in times)


def test_voxcpm2s_shapes_are_measured_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "2b", "--rows", "1", "--device", "cpu"]  # all its ops would take half a minute
    assert main(["bench", "kernels", "--ops", "local_attention,flow_turn,rms_norm,sample", *options]) == 0
    shown, told = capsys.readouterr()
    for words in ("voxcpm2 flow 11 positions", "voxcpm2 flow 4 × 64", "voxcpm2 language norm"):
        assert words in shown
    assert "nothing was measured for sample" in told
    assert main(["bench", "kernels", "--ops", "rms_norm", "--where", "language", *options]) == 0
    shown, _ = capsys.readouterr()
    assert "voxcpm2 language norm" in shown and "voxcpm2 flow norm" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ops", "linear,lineal"], "there is no op 'lineal'; choose from"),
        (["--size", "7b"], "there is no size '7b'; choose from 0.6b, 1.7b"),
        (["--rows", "1,x"], "--rows takes whole numbers"),
        (["--rows", "0"], "--rows takes numbers of at least 1"),
    ],
    ids=lambda v: None if isinstance(v, str) else " ".join(v),
)
def test_what_cannot_be_measured_is_told(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err
