"""Modules are filled from any store of tensors, under any names, completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from peak_memory import needs_peak_memory, run_python
from sonant.errors import CheckpointError
from sonant.models.weights import FUSED, Naming, SafetensorsFile, load, load_into, rename_by
from sonant.models.weights.source import Read, StoredTensor
from weight_files import Fused, Write, pickled, shards, stored, whole, wrapped

SOURCES = pytest.mark.parametrize("write", [whole, shards, pickled, wrapped])


@SOURCES
@pytest.mark.parametrize("window_bytes", [1, 50, 1 << 20])
def test_every_source_fills_the_same_module(
    write: Write, window_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "WINDOW_BYTES", window_bytes)
    module, tensors = Fused(), stored()
    load_into(module, write(tmp_path, tensors | {"b.more": torch.ones(2)}), prefix="a.", unused=("b.",))
    assert torch.equal(module.qkv_proj.weight, torch.cat([tensors[f"a.{p}.weight"] for p in FUSED["qkv_proj"]]))
    assert torch.equal(module.norm.bias, tensors["a.norm.bias"])
    assert int(module.get_buffer("count")) == 7


@SOURCES
def test_what_is_missing_strange_or_mis_shaped_is_named(write: Write, tmp_path: Path) -> None:
    for name, change, says in (
        ("missing", {"a.k_proj.weight": None}, "lacks a.k_proj.weight"),
        ("strange", {"a.odd": torch.ones(1)}, "holds a.odd, unknown"),
        ("shaped", {"a.norm.bias": torch.ones(5)}, r"a.norm.bias ends at row 5 of 6"),
        ("wide", {"a.k_proj.weight": torch.ones(3, 5)}, r"a.k_proj.weight has shape \[3, 5\].*asks for \[6, 6\]"),
        ("scalar", {"a.count": torch.tensor([7])}, r"a.count has shape \[1\].*asks for \[\]"),
        ("whole numbers", {"a.norm.bias": torch.ones(6, dtype=torch.int8)}, "a.norm.bias is stored as torch.int8"),
    ):
        (folder := tmp_path / name).mkdir()
        tensors = {n: t for n, t in (stored() | change).items() if t is not None}
        with pytest.raises(CheckpointError, match=says):
            load_into(Fused(), write(folder, tensors), prefix="a.")


def test_on_the_meta_device_all_is_checked_and_nothing_read(tmp_path: Path) -> None:
    class Unread(SafetensorsFile):
        def window(self) -> Iterator[Read]:  # type: ignore[override]
            raise AssertionError("read")

    whole(tmp_path, stored())
    source = Unread(tmp_path / "model.safetensors")
    load_into(Fused().to("meta"), source, prefix="a.")
    with pytest.raises(CheckpointError, match="lacks b"):
        load_into(Fused().to("meta"), source, prefix="b.")


# Names


def test_stored_names_are_renamed_by_rules_in_turn(tmp_path: Path) -> None:
    tensors = {f"decoder_2.blocks.3.{n.removeprefix('a.')}": t for n, t in stored().items()}
    module = nn.ModuleDict({"res_unit2": Fused()})
    naming = Naming(rename=rename_by([(r"^decoder_2\.", "acoustic."), (r"blocks\.3\.", "res_unit2.")]))
    load_into(module, whole(tmp_path, tensors), prefix="acoustic.", naming=naming)
    assert torch.equal(module["res_unit2"].norm.weight, stored()["a.norm.weight"])  # type: ignore[union-attr]


def test_two_stored_names_that_come_to_one_are_refused(tmp_path: Path) -> None:
    tensors = {"old.weight": torch.ones(2), "new.weight": torch.ones(2)}
    naming = Naming(rename=lambda name: name.replace("old", "new"))
    with pytest.raises(CheckpointError, match=r"(old|new)\.weight and (old|new)\.weight are both new\.weight"):
        load_into(nn.Module(), whole(tmp_path, tensors), naming=naming)


SPLIT = Naming(joined={**FUSED, "embed": ("embed.embedding_frozen", "embed.embedding_trainable")})


def test_a_tensor_that_was_split_is_laid_together(tmp_path: Path) -> None:
    module = nn.ModuleDict({"embed": nn.Embedding(5, 2)})
    rows = torch.arange(10.0).view(5, 2)
    halves = {"frozen": rows[:3].clone(), "trainable": rows[3:].clone()}
    parts = {f"m.embed.embedding_{name}.weight": half for name, half in halves.items()}
    source = whole(tmp_path, parts)
    load_into(module, source, prefix="m.", naming=SPLIT)
    assert torch.equal(module["embed"].weight, rows)
    (tmp_path / "one").mkdir()
    load_into(module, whole(tmp_path / "one", {"m.embed.weight": -rows}), prefix="m.", naming=SPLIT)  # not split
    assert torch.equal(module["embed"].weight, -rows)
    (tmp_path / "half").mkdir()
    half = {name: t for name, t in parts.items() if "trainable" in name}
    with pytest.raises(CheckpointError, match=r"lacks m\.embed\.embedding_frozen\.weight"):
        load_into(module, whole(tmp_path / "half", half), prefix="m.", naming=SPLIT)


# Weight norm


def convolution(transposed: bool) -> nn.Conv1d | nn.ConvTranspose1d:
    torch.manual_seed(1)
    return nn.ConvTranspose1d(4, 6, 5) if transposed else nn.Conv1d(4, 6, 5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("style", ["old", "new"])
@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_weight_norm_is_folded(
    transposed: bool, style: str, window_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "WINDOW_BYTES", window_bytes)
    normed = (weight_norm if style == "old" else parametrizations.weight_norm)(convolution(transposed))
    with torch.no_grad():
        for name, param in normed.named_parameters():
            if name.endswith(("weight_g", "original0")):
                param.mul_(torch.rand_like(param) + 0.5)
    source = whole(tmp_path, dict(normed.state_dict()))
    plain = convolution(transposed)
    load_into(plain, source)
    x = torch.randn(1, 4, 9)
    torch.testing.assert_close(plain(x), normed(x))


def test_weight_norm_is_folded_in_float32(tmp_path: Path) -> None:
    v = torch.full((1, 4096), 0.01, dtype=torch.bfloat16)  # in bfloat16 the sum of squares would stop growing
    plain = nn.Linear(4096, 1, bias=False)
    load_into(plain, whole(tmp_path, {"weight_v": v, "weight_g": torch.ones(1, 1, dtype=torch.bfloat16)}))
    torch.testing.assert_close(plain.weight.norm(), torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_half_of_a_weight_norm_or_one_of_another_dimension_is_named(tmp_path: Path) -> None:
    tensors = dict(weight_norm(convolution(True)).state_dict())
    for name, change, says in (
        ("half", {"weight_g": None}, "lacks weight_g"),
        ("other", {"weight_g": torch.ones(1, 6, 1)}, r"weight_g has shape \[1, 6, 1\].*each of the 4 rows"),
    ):
        (folder := tmp_path / name).mkdir()
        kept = {n: t for n, t in (tensors | change).items() if t is not None}
        with pytest.raises(CheckpointError, match=says):
            load_into(convolution(True), whole(folder, kept))


# Windows


class Counted:
    """A source of made-up tensors of any size, which counts the bytes that each window asks for."""

    label = "made up"

    def __init__(self, tensors: dict[str, StoredTensor]) -> None:
        self.tensors = tensors
        self.held: list[int] = []
        self.spans: dict[str, list[tuple[int, int]]] = {name: [] for name in tensors}
        self.open = 0

    @contextmanager
    def window(self) -> Iterator[Read]:
        self.open += 1
        assert self.open == 1
        self.held.append(0)

        def read(name: str, start: int, end: int) -> Tensor:
            self.held[-1] += self.tensors[name].row_bytes * (end - start)
            self.spans[name].append((start, end))
            return torch.ones(end - start, *self.tensors[name].shape[1:])

        yield read
        self.open -= 1


def test_windows_cover_all_rows_once_and_none_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WINDOW_BYTES", 1000)
    rows = {"t0": 3, "t1": 700, "t2": 12, "t3": 200, "t4": 0}
    source = Counted({name: StoredTensor((n, 2), torch.float32) for name, n in rows.items()})
    module = nn.Module()
    for name, n in rows.items():
        module.register_buffer(name, torch.zeros(n, 2))
    load_into(module, source)
    for name, n in rows.items():
        spans = source.spans[name]
        assert bool(module.get_buffer(name).all())
        assert not n or (spans[0][0] == 0 and spans[-1][1] == n and all(a[1] == b[0] for a, b in pairwise(spans)))
    assert max(source.held) <= 1000 and sum(source.held) == 8 * sum(rows.values())
    assert len(source.held) <= 9  # small ones share a window


MEASURE = """
import sys, torch
from pathlib import Path
from peak_memory import peak_bytes
torch.set_num_threads(1)
from sonant.models.weights import PickledTensors, load, load_into, open_weights
load.WINDOW_BYTES = 16 << 20
folder = Path(sys.argv[1])
module = torch.nn.ModuleList(torch.nn.Linear(1024, 16 << 10, bias=False, device="meta") for _ in range(4))
source = open_weights(folder) if sys.argv[2] == "shards" else PickledTensors(folder / "model.pth")
module.to_empty(device="cpu")
before = peak_bytes()
load_into(module, source)
print(peak_bytes() - before)
"""


@pytest.mark.slow
@needs_peak_memory
@pytest.mark.parametrize("write", [shards, pickled])
def test_no_source_holds_the_weights_twice(write: Write, tmp_path: Path) -> None:
    tensors = {f"{n}.weight": torch.ones(16 << 10, 1024) for n in range(4)}  # 256 MB, sixteen windows
    write(tmp_path, tensors)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    done = run_python(MEASURE, str(tmp_path), write.__name__)
    assert int(done.stdout) < 1.25 * total
