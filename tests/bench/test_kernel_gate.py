"""`sonant bench kernels --against` fails for slower kernels, but not for noise or a slower GPU. Figures are made up."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sonant.bench.kernels import gate, versus_torch
from sonant.bench.kernels.asked import Asked, run_share
from sonant.bench.kernels.attention_cases import EIGHT_BITS, AttentionCases
from sonant.bench.kernels.case import Call, Case, Rival
from sonant.bench.kernels.gate import key
from sonant.bench.kernels.versus_torch import Ceiling, KernelReport, KernelTime, measure
from sonant.cli.bench import kernels as kernels_command
from sonant.cli.main import main
from sonant.errors import ConfigError
from sonant.kernels import reference
from sonant.kernels.dispatch import Choice
from sonant.models.qwen3_tts import workload as qwen_workload

STEP, NORM = "paged_step | long 1024 positions | 64", "rms_norm | talker norm | 1"


def timed(name: str, us: float, floor_us: float = 50.0) -> KernelTime:
    op, where, rows = name.split(" | ")
    return KernelTime(op, where, int(rows), floor_us, 900.0, us, 1.0, 0.0, "cuda", "made up", {})


def report(*times: KernelTime, device: str = "NVIDIA H200", dtype: str = "bfloat16") -> KernelReport:
    return KernelReport(device, "2.11", dtype, Ceiling(4.3e12, 7e14), list(times), "2026-11-16T00:00:00+00:00")


def never(names: Collection[str]) -> Iterable[KernelTime]:
    raise AssertionError(f"{names} were measured again")


def test_as_fast_as_accepted_passes_and_nothing_is_measured_again() -> None:
    verdict = gate.judge([timed(STEP, 60.0), timed(NORM, 2.0)], {STEP: 50 / 60, NORM: 25.0}, never)
    assert verdict.passed and verdict.compared == 2 and not verdict.unknown and not verdict.missing


def test_slower_in_every_measurement_fails_and_is_told_with_how_much() -> None:
    asked: list[set[str]] = []

    def again(names: Collection[str]) -> Iterable[KernelTime]:
        asked.append(set(names))
        return [timed(STEP, 75.0 - len(asked))]

    verdict = gate.judge([timed(STEP, 75.0), timed(NORM, 2.0)], {STEP: 50 / 60, NORM: 25.0}, again)
    assert not verdict.passed and asked == [{STEP}] * 3
    (slower,) = verdict.slower
    assert slower.us == 72.0
    told = gate.told(verdict, Path("table.json"), 0.05)
    assert f"{STEP}: 20.0 % slower than accepted (72.00 µs: 69.4 % of its floor, 83.3 % were accepted)" in told
    assert told.endswith("2 kernels against table.json, 1 slower by more than 5 %")


def test_noise_is_measured_away() -> None:
    seen = iter([80.0, 61.0])
    verdict = gate.judge([timed(STEP, 90.0)], {STEP: 50 / 60}, lambda names: [timed(STEP, next(seen))])
    assert verdict.passed and [t.kernel_us for t in verdict.times] == [61.0]
    with pytest.raises(StopIteration):
        next(seen)


def test_figures_are_relative_to_the_bandwidth_of_the_same_run() -> None:
    """A GPU at half its clock halves both; a kernel that takes as long as before on a faster GPU counts as slower."""
    assert gate.judge([timed(STEP, 120.0, floor_us=100.0)], {STEP: 50 / 60}, never).passed
    assert not gate.judge([timed(STEP, 60.0, floor_us=40.0)], {STEP: 50 / 60}, lambda names: []).passed


@pytest.mark.parametrize(("us", "passes"), [(62.9, True), (63.4, False), (30.0, True)])
def test_the_tolerance_is_five_percent(us: float, passes: bool) -> None:
    assert gate.judge([timed(STEP, us)], {STEP: 50 / 60}, lambda names: []).passed == passes


def test_what_one_side_lacks_is_told_and_does_not_fail() -> None:
    verdict = gate.judge([timed(NORM, 2.0)], {STEP: 0.8}, never)
    assert verdict.passed and verdict.unknown == (NORM,) and verdict.missing == (STEP,) and verdict.compared == 0
    told = gate.told(verdict, Path("t.json"), 0.05)
    assert f"not in t.json yet: {NORM}" in told and "1 figures of t.json were not measured" in told


def test_a_table_is_read_as_it_was_written_and_keeps_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.json"
    first = report(timed(STEP, 60.0), timed(NORM, 2.0))
    assert gate.write(path, first, first.times, {}) == 2
    second = report(timed(STEP, 50.0))
    assert gate.write(path, second, second.times, gate.read(path, second.device, second.dtype)) == 2
    assert gate.read(path, second.device, second.dtype) == {STEP: 1.0, NORM: 25.0}
    assert [p.name for p in path.parent.iterdir()] == ["table.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        ("{", "no table of accepted figures"),
        ("[1]", "no table of accepted figures"),
        ({"format": 2}, "format 2, not 1"),
        ({"share_of_floor": {STEP: "fast"}}, "no table"),
        ({"share_of_floor": {STEP: 0}}, "not over 0"),
        ({"share_of_floor": {STEP: float("nan")}}, "not over 0"),
        ({"device": "NVIDIA A100"}, "is of NVIDIA A100 in bfloat16, and this is NVIDIA H200"),
        ({"dtype": "float32"}, "in float32, and this is"),
    ],
)
def test_a_table_that_says_nothing_about_this_gpu_is_refused(content: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    good = {"format": 1, "device": "NVIDIA H200", "dtype": "bfloat16", "share_of_floor": {STEP: 0.8}}
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(good | content))
    with pytest.raises(ConfigError, match=reason):
        gate.read(path, report().device, report().dtype)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The times that the command will find, one after the other, instead of running anything."""
    us: list[float] = []

    def measured(
        cases: Iterable[Case], device: torch.device, ceiling: Ceiling, *, compare: bool
    ) -> Iterator[KernelTime]:
        assert not compare, "what is held against a table needs no plain torch beside it"
        for case in cases:
            yield timed(key(case), us.pop(0))

    monkeypatch.setattr(versus_torch, "measure_all", measured)
    monkeypatch.setattr(versus_torch, "copy_bandwidth", lambda device: 4e12)
    monkeypatch.setattr(versus_torch, "product_rate", lambda device, dtype, quantize: 7e14)
    yield us
    assert not us


def command(table: Path | str, *more: str) -> int:
    shape = ("--ops", "rms_norm", "--size", "0.6b", "--rows", "2", "--device", "cpu", "--dtype", "float32")
    return main(["bench", "kernels", *shape, "--against", str(table), *more])


def test_the_command_accepts_passes_and_fails(
    made_up: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command measures two norms: the talker's and the predictor's."""
    table = tmp_path / "table.json"
    made_up += [10.0, 20.0]
    assert command(table, "--accept") == 0
    assert sorted(json.loads(table.read_text())["share_of_floor"].values()) == [2.5, 5.0]
    made_up += [10.2, 20.5]
    assert command(table) == 0
    made_up += [10.0, 30.0, 29.0, 28.0, 27.0]  # the second is measured three times more
    assert command(table) == 1
    out = capsys.readouterr().out
    assert "35.0 % slower than accepted (27.00 µs" in out
    made_up += [10.0, 30.0]
    assert command(table, "--tolerance", "40") == 0
    made_up += [10.0, 30.0, 29.0, 28.0, 27.0]
    assert command(table, "--accept") == 0  # slower, and accepted on purpose
    made_up += [10.0, 27.5]
    assert command(table) == 0


def test_the_command_finds_the_table_that_is_shipped_for_its_gpu(
    made_up: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def shipped(gpu: str, quantize: str | None) -> Path:
        asked.append(gpu)
        return tmp_path / "table.json"

    assert gate.shipped("NVIDIA H200").name == "nvidia-h200.json"
    assert gate.shipped("NVIDIA H200", "fp8").name == "nvidia-h200-fp8.json"
    monkeypatch.setattr(gate, "shipped", shipped)
    assert command("shipped") == 2 and "there is no table" in capsys.readouterr().err
    made_up += [10.0, 20.0]
    assert command("shipped", "--accept") == 0 and (tmp_path / "table.json").is_file()
    made_up += [10.0, 20.0]
    assert command("shipped") == 0 and len(set(asked)) == 1


def test_what_seems_slower_is_measured_again_with_a_floor_of_its_own(
    made_up: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because a ceiling that was measured too high by chance makes everything look slow."""
    asked: list[torch.device] = []
    monkeypatch.setattr(versus_torch, "copy_bandwidth", lambda device: asked.append(device) or 4e12)
    made_up += [10.0, 20.0]
    assert command(tmp_path / "table.json", "--accept") == 0 and len(asked) == 1
    made_up += [10.0, 30.0, 20.0]
    assert command(tmp_path / "table.json") == 0 and len(asked) == 3


def test_a_table_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands for a read-only folder, since root may write to those too."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(gate, "shipped", lambda gpu, quantize: tmp_path / "file" / "accepted" / "table.json")
    assert command("shipped", "--accept") == 2
    assert "cannot be written; name a file of your own: --against FILE --accept" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--accept",)])
@pytest.mark.parametrize(
    ("content", "reason"),
    [({"device": "NVIDIA H200"}, "is of NVIDIA H200 in float32, and this is"), ({"share_of_floor": 1}, "is no table")],
    ids=["another GPU", "broken"],
)
def test_a_table_of_no_use_here_is_told_before_anything_is_measured(
    made_up: list[float],
    content: Mapping[str, Any],
    reason: str,
    more: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "table.json"
    made_up += [10.0, 20.0]
    assert command(table, "--accept") == 0
    table.write_text(json.dumps(json.loads(table.read_text()) | content))
    assert command(table, *more) == 2  # no time is left in `made_up`, so measuring would fail
    assert reason in capsys.readouterr().err


def test_out_of_time_nothing_more_is_begun_and_what_was_measured_is_kept(
    made_up: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 9.0])
    monkeypatch.setattr(kernels_command, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    made_up += [10.0]
    table = tmp_path / "table.json"
    assert command(table, "--accept", "--seconds", "5") == 0
    assert list(json.loads(table.read_text())["share_of_floor"].values()) == [5.0]
    assert "out of time: only the first 1 kernels" in capsys.readouterr().err


def test_processes_that_compile_ahead_share_all_cases_out() -> None:
    providers = (qwen_workload.workloads(["0.6b"]),)
    asked = Asked(torch.device("cpu"), torch.float32, None, providers, (1, 2), 0, ("rms_norm", "uniforms"), "")
    count = len(list(asked.cases()))
    assert count == 6  # two norms and the uniforms, each at two numbers of rows
    assert [run_share(pickle.loads(pickle.dumps(asked)), n, 4) for n in range(4)] == [2, 2, 1, 1]


def test_without_a_comparison_only_what_runs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versus_torch, "time_ms", lambda run, device: run() or 1e-3)
    ours = Choice("rms_norm", "triton", "made up", lambda *args: reference.rms_norm(*args))
    monkeypatch.setattr(versus_torch, "choose", lambda *args, **options: ours)

    def refused(*args: Any) -> None:
        raise AssertionError("nobody asked for it")

    call = Call((torch.ones(2, 1, 8), torch.ones(8), 1e-6), {})
    rivals = {"other": Rival(lambda given: given, refused)}
    case = Case("rms_norm", "norm", 2, lambda: call, 0, 64, usual=refused, rivals=rivals)
    with torch.inference_mode():
        result = measure(case, torch.device("cpu"), Ceiling(1e9, 1e9), compare=False)
    assert result.reference_us is None and result.speed_up is None and result.picked_us == 1.0 and not result.rivals_us
    assert "made up" in versus_torch.table(replace(report(result), device="a CPU"))


def test_the_command_refuses_what_makes_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--accept", "--device", "cpu"]) == 2
    assert "--against names" in capsys.readouterr().err
    assert command(tmp_path / "table.json", "--tolerance", "0") == 2
    assert "between 0 and 100" in capsys.readouterr().err


def test_long_attention_has_rivals_that_compute_the_same() -> None:
    """At smaller shapes than are measured; torch's attention on a CPU stands for FlashAttention."""
    cases = AttentionCases(torch.device("cpu"), torch.float32)
    for case, causal in ((cases.prefill(2, 40), True), (cases.decode(3, 40), False)):
        call = case.make()
        rival = case.rivals["flash"]
        prepared = rival.prepare(call)
        with torch.inference_mode():
            if causal:
                expected = reference.paged_attention(*call.args)
            else:  # the query heads, just as the projection gives them
                qkv, heads, cache, tables, positions, span = call.args
                q = qkv.view(3, 1, -1, 128)[:, :, : heads.heads]
                expected = reference.paged_attention(q, cache, tables, positions, span)
            got = torch.nn.functional.scaled_dot_product_attention(*prepared.args, is_causal=causal, enable_gqa=True)
        torch.testing.assert_close(got.transpose(1, 2), expected, rtol=1e-4, atol=1e-4)
        assert case.bytes >= case.streamed_bytes > 0 and case.flops > 0


def test_a_cache_of_eight_bits_has_figures_of_its_own_and_half_the_bytes() -> None:
    cases = AttentionCases(torch.device("cpu"), torch.bfloat16)
    for make in (cases.prefill, cases.decode):
        usual, small = make(2, 40), make(2, 40, EIGHT_BITS)
        assert gate.key(usual) != gate.key(small) and usual.streamed_bytes == 2 * small.streamed_bytes
        assert any(isinstance(x, torch.Tensor) and x.dtype is EIGHT_BITS for x in small.make().args)
        assert "flash" in usual.rivals and "flash" not in small.rivals


def test_a_rival_that_does_not_run_is_left_out_of_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versus_torch, "time_ms", lambda run, device: run() or 1e-3)

    def broken(*args: Any) -> None:
        raise RuntimeError("no such kernel")

    x, gain = torch.ones(2, 1, 8), torch.ones(8)
    case = Case("rms_norm", "norm", 2, lambda: Call((x, gain, 1e-6), {}), 0, 64)
    rivals = {"broken": Rival(lambda call: call, broken), "same": Rival(lambda call: call, reference.rms_norm)}
    case = replace(case, rivals=rivals)
    with torch.inference_mode():
        result = measure(case, torch.device("cpu"), Ceiling(1e9, 1e9))
    assert math.isnan(result.rivals_us["broken"]) and result.rivals_us["same"] == 1.0
    assert "same" in versus_torch.table(replace(report(result), device="a CPU"))
