"""The tuner takes the fastest candidate with the right result, even if that is the library, and stops in time."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from sonant.bench.kernels import tune
from sonant.bench.kernels.case import Call
from sonant.bench.kernels.versus_torch import Ceiling
from sonant.cli.main import main
from sonant.errors import ConfigError
from sonant.kernels.tuning import LIBRARY, Tile
from sonant.models.qwen3_tts.workload import workloads
from sonant.models.voxcpm2 import workload as voxcpm2
from sonant.models.workload import StackWorkload

pytest.importorskip("triton")
from sonant.bench.kernels.tune_cases import ConvCase, ProductCase, conv_cases, product_cases
from sonant.bench.kernels.tune_dual_cases import DualCase, dual_cases
from sonant.bench.kernels.tune_local_cases import LocalOutCase, local_cases
from sonant.bench.kernels.tune_tiled_cases import TiledCase, tiled_cases
from sonant.kernels.triton import dual_tile

SHAPES = workloads(["1.7b"])
PRODUCTS, CONVOLUTIONS = list(product_cases(SHAPES.stacks)), list(conv_cases(SHAPES.codec))
BOTH = StackWorkload("both", 3072, 8192, 24, 8, 128, vocab=8208, context=300, per_frame=False, dual=True, codebooks=8)
DUAL = list(dual_cases((*SHAPES.stacks, BOTH)))
FLOW = voxcpm2.workloads(["2b"])
QUANTIZED = list(product_cases(SHAPES.stacks, "fp8"))
FLOW_PRODUCTS, FLOW_CONVOLUTIONS = list(product_cases(FLOW.stacks)), list(conv_cases(FLOW.codec))
LOCAL = list(local_cases((*SHAPES.stacks, *FLOW.stacks)))
TILED = list(tiled_cases((*SHAPES.stacks, *FLOW.stacks)))
CPU, CEILING = torch.device("cpu"), Ceiling(4e12, 700e12)
SLOW, FAST, WRONG, ABSENT = Tile(16), Tile(32), Tile(64), Tile(128)


@dataclass(frozen=True)
class Fake:
    op: str = "linear"
    key: str = "small_m shape 16"
    where: str = "nowhere"
    rows: int = 16
    bytes: int = 1 << 20
    streamed_bytes: int = 1 << 30
    flops: int = 0

    def candidates(self) -> list[Tile]:
        return [SLOW, FAST, WRONG, ABSENT]

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return (tile,)

    def least(self) -> Fake:
        return self

    def make(self, device: torch.device) -> Call:
        return Call((torch.ones(4),), {})

    def with_other_weights(self, call: Call) -> Call:
        return call

    def run(self, call: Call, tile: Tile) -> Tensor:
        return call.args[0] * (2 if tile == WRONG else 1)

    def expected(self, call: Call) -> Tensor:
        return call.args[0]


def tuned(monkeypatch: pytest.MonkeyPatch, library_us: float) -> tune.Tuned:
    times = {SLOW: 9.0, FAST: 5.0, WRONG: 1.0, ABSENT: 1.0, LIBRARY: library_us}
    monkeypatch.setattr(tune, "call_us", lambda case, calls, tile, floor_us, limit_us=0.0: times[tile])
    return tune.tune_one(Fake(), CPU, CEILING, compiled={(SLOW,), (FAST,), (WRONG,)})


def test_the_fastest_right_candidate_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuned(monkeypatch, library_us=7.0)
    assert (result.tile, result.best_us, result.rule_us, result.library_us) == (FAST, 5.0, 9.0, 7.0)
    assert result.tried == 2 and len(result.failed) == 1 and "relative error" in result.failed[0]
    assert "WRONG" in tune.table([result])


def test_the_library_may_win(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuned(monkeypatch, library_us=4.0)
    assert result.tile == LIBRARY and "library" in tune.table([result]).splitlines()[-2]


def test_out_of_time_the_rest_keeps_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    assert tune.tune([Fake(), Fake()], CPU, CEILING, set(), time.monotonic() - 1, said.append) == []
    assert "2 of 2 shapes keep their rule" in said[-1]


def test_candidates_are_compiled_on_the_gpu_that_they_are_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another one there may be no room for them, and the library would seem to win everywhere."""
    second, used, made = torch.device("cuda", 1), list[torch.device](), list[torch.device]()

    def make(self: Fake, device: torch.device) -> Call:
        made.append(device)
        return Call((torch.ones(4),), {})

    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(Fake, "make", make)
    assert tune.compile_some([(Fake(), FAST)], second) == [True]
    assert made == used == [second]


@pytest.mark.parametrize("options", [[], ["--tune"]], ids=["measured", "tuned"])
def test_the_gpu_that_is_asked_for_is_the_current_one(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches there, wherever the arguments are."""

    def used(device: torch.device) -> None:
        raise ConfigError(f"{device} is current")

    monkeypatch.setattr("sonant.cli.bench.kernels.pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", used)
    assert main(["bench", "kernels", "--device", "cuda:1", *options]) == 2
    assert "cuda:1 is current" in capsys.readouterr().err


def test_without_a_gpu_there_is_nothing_to_tune(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tune_cases", "tune_dual_cases", "tune_local_cases"):
        monkeypatch.delitem(sys.modules, f"sonant.bench.kernels.{name}")
    monkeypatch.setitem(sys.modules, "triton", None)  # a plain installation has no Triton
    for name in [n for n in sys.modules if n.startswith("sonant.kernels.triton")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["bench", "kernels", "--tune", "--device", "cpu"]) != 0
    assert "needs a GPU" in capsys.readouterr().err


def test_the_shapes_are_the_models() -> None:
    assert {(c.depth, c.columns) for c in PRODUCTS if c.gated} == {(2048, 6144), (1024, 3072)}
    frame = [c for c in CONVOLUTIONS if c.frames == 1]
    assert [(c.inputs, c.columns, c.taps) for c in frame][:4] == [
        (1024, 1536, 7), (1536, 8 * 768, 2), (768, 768, 7), (768, 768, 1),
    ]  # fmt: skip
    assert [c.steps for c in frame] == [4, 4, 32, 32, 32, 160, 160, 160, 640, 640, 640, 1920, 1920, 1920]


def test_every_candidate_fits_its_shape() -> None:
    for case in (*PRODUCTS, *QUANTIZED, *CONVOLUTIONS, *DUAL, *FLOW_PRODUCTS, *FLOW_CONVOLUTIONS, *LOCAL, *TILED):
        tiles = case.candidates()
        assert len(tiles) > 3 and len(set(tiles)) == len(tiles)
        for tile in tiles:
            if isinstance(case, ProductCase):
                ours = case.many or isinstance(case, TiledCase)
                assert case.depth % (tile.k * tile.splits) == 0 and (tile.m > 0) == ours
            elif isinstance(case, ConvCase):
                assert tile.splits <= case.taps * -(-case.inputs // tile.k)
            elif isinstance(case, LocalOutCase):
                assert case.heads % tile.splits == 0 and tile.splits % case.kv_heads == 0
            else:
                assert tile.splits <= case.depth // tile.k and tile.m <= case.rows
                assert dual_tile.shared_bytes(tile, case.gated, item_bytes=2) <= 227 << 10


def test_quantised_products_have_keys_of_their_own_and_few_rows_and_many_kernels_of_theirs() -> None:
    keys = [case.key for case in QUANTIZED]
    assert len(set(keys)) == len(keys) and not set(keys) & {case.key for case in PRODUCTS}
    assert all(key.startswith("scaled ") == case.many for key, case in zip(keys, QUANTIZED, strict=True))
    assert {case.rows for case in QUANTIZED if case.many} == {32, 64, 128, 256, 512}
    assert "linear" not in {case.op for case in QUANTIZED}  # the heads' op: they are not quantised


def test_what_draws_no_codes_and_is_depthwise_is_tuned_for_what_it_runs() -> None:
    assert {(c.op, c.depth, c.columns) for c in FLOW_PRODUCTS} == {
        ("norm_linear", 2048, 2560), ("norm_linear", 1024, 2560), ("norm_gated", 2048, 6144),
        ("norm_gated", 1024, 4096), ("linear_add", 2048, 2048), ("linear_add", 2048, 1024),
        ("linear_add", 6144, 2048), ("linear_add", 4096, 1024),
    }  # fmt: skip
    frame = [(c.inputs, c.channels, c.samples, c.taps, c.steps) for c in FLOW_CONVOLUTIONS if c.frames == 1]
    assert frame[:4] == [(64, 2048, 1, 1, 4), (2048, 1024, 8, 2, 4), (1024, 1024, 1, 1, 32), (1024, 512, 6, 2, 32)]
    assert frame[-1] == (32, 1, 1, 7, 7680)
    assert all(taps < 7 for _, _, _, taps, _ in frame[:-1])
    assert len({c.key for c in FLOW_PRODUCTS}) == len(FLOW_PRODUCTS)


def test_the_middle_of_a_local_layer_is_tuned_for_the_rows_that_a_flow_has() -> None:
    assert {case.rows: (case.batch, case.steps) for case in LOCAL} == {
        16: (1, 11), 32: (2, 11), 64: (5, 11),
    }  # fmt: skip
    assert len({case.key for case in LOCAL}) == len(LOCAL)


def test_the_products_of_two_sided_layers_are_tuned_and_of_no_others() -> None:
    assert {(c.op, c.depth, c.columns) for c in DUAL} == {
        ("dual_norm_gated", 3072, 8192), ("dual_linear_add", 8192, 3072),
    }  # fmt: skip
    assert len({c.key for c in DUAL}) == len(DUAL)


@pytest.mark.parametrize("rows", [1, 16, 17, 40, 64, 65, 128, 129, 600, 2048])
@pytest.mark.parametrize(("depth", "columns", "gated"), [(3072, 8192, True), (8192, 3072, False), (96, 40, True)])
def test_the_rule_for_two_sided_layers_needs_no_more_than_a_processor_has(
    rows: int, depth: int, columns: int, gated: bool
) -> None:
    for item_bytes in (1, 2, 4):
        tile = dual_tile.rule(rows, depth, columns, gated, item_bytes)
        assert dual_tile.shared_bytes(tile, gated, item_bytes) <= 227 << 10
        assert 1 <= tile.splits <= -(-depth // tile.k)


SMALL = [DualCase("dual_norm_gated", "gate, up", 5, 64, 48), DualCase("dual_linear_add", "down", 5, 48, 64)]


EIGHT_BITS = [
    ProductCase("linear", "few rows", 3, 64, 48, quantize="fp8"),
    ProductCase("norm_linear", "many rows", 70, 64, 48, quantize="fp8"),
    DualCase("dual_linear_add", "two sides", 5, 48, 64, quantize="fp8"),
]
AROUND = [TiledCase("linear", "plain", 70, 64, 48), TiledCase("norm_gated", "gated", 70, 64, 48)]
ONE_FRAME = [case for case in CONVOLUTIONS if case.frames == 1]


@pytest.mark.parametrize(
    "case", [PRODUCTS[0], *ONE_FRAME[1:4], ONE_FRAME[-1], *SMALL, *EIGHT_BITS, *AROUND], ids=lambda case: case.where
)
def test_a_case_computes_what_its_reference_does(case: ProductCase | ConvCase | DualCase | TiledCase) -> None:
    """On a CPU the library's path is all that runs."""
    call = case.with_other_weights(case.make(CPU))
    with torch.inference_mode():
        got, expected = (tile_or.float() for tile_or in (case.run(call, LIBRARY), case.expected(call)))
    assert float((got - expected).norm() / expected.norm()) < 2e-2
