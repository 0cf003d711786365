"""Weights that threads read ahead are those of the file, however late a device copies them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sonant.errors import CheckpointError, ConfigError
from sonant.models.weights import FUSED, Naming, load, load_into, open_weights, staged
from sonant.models.weights.host_memory import HostMemory
from sonant.models.weights.staged import Rows, StagedReader
from weight_files import Fused, Write, pickled, shards, stored, whole

CPU = torch.device("cpu")
SOURCES = pytest.mark.parametrize("write", [whole, shards])


def fill(module: nn.Module, source: Any, prefix: str = "", naming: Naming | None = None) -> None:
    load.fill_staged(load._plan(module, source, prefix, (), naming or Naming()), source, CPU)


@SOURCES
@pytest.mark.parametrize("buffer_bytes", [1, 50, 1 << 20])
@pytest.mark.parametrize("at_once", [7, 1 << 20])
def test_a_module_is_filled_as_from_a_mapping(
    write: Write, buffer_bytes: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(staged, "_AT_ONCE", at_once)
    module, tensors = Fused(), stored()
    fill(module, write(tmp_path, tensors), prefix="a.")
    assert torch.equal(module.qkv_proj.weight, torch.cat([tensors[f"a.{p}.weight"] for p in FUSED["qkv_proj"]]))
    assert torch.equal(module.norm.bias, tensors["a.norm.bias"])
    assert int(module.get_buffer("count")) == 7


@SOURCES
def test_values_are_cast_and_weight_norm_is_folded_on_the_way(write: Write, tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(3)
    tensors = {"weight_g": torch.rand(8, 1, 1, generator=g), "weight_v": torch.randn(8, 5, 3, generator=g)}
    source = write(tmp_path, tensors | {"bias": torch.randn(8, generator=g)})
    mapped, ahead = (nn.Conv1d(5, 8, 3).to(torch.bfloat16).requires_grad_(False) for _ in range(2))
    load_into(mapped, source)
    fill(ahead, source)
    assert torch.equal(mapped.weight, ahead.weight) and torch.equal(mapped.bias, ahead.bias)  # type: ignore[arg-type]


@pytest.mark.parametrize(("write", "ahead"), [(whole, True), (shards, True), (pickled, False)])
def test_what_lies_in_files_as_it_is_is_read_ahead_for_a_gpu(
    write: Write, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(load, "fill_staged", lambda fillings, source, device: asked.append(device))
    source = write(tmp_path, stored())
    load_into(Fused().requires_grad_(False), source, prefix="a.")
    assert not asked  # a CPU copies from the mapping
    monkeypatch.setattr(load.Filling, "device", property(lambda self: torch.device("cuda", 1)))
    load_into(Fused().requires_grad_(False), source, prefix="a.")
    assert asked == ([torch.device("cuda", 1)] if ahead else [])


class LateDevice:
    """A device that copies what was sent only when it is waited for."""

    def __init__(self) -> None:
        self.sent: list[tuple[Tensor, Tensor]] = []
        self.most_sent = 0

    def send(self, values: Tensor, place: Tensor) -> None:
        self.sent.append((values, place))
        self.most_sent = max(self.most_sent, len(self.sent))

    def record(self, stream: object) -> None:
        self.upto = len(self.sent)

    def synchronize(self) -> None:
        for values, place in self.sent:
            place.copy_(values)
        self.sent.clear()


def test_a_buffer_is_read_into_again_only_when_the_device_has_taken_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.arange(64.0).view(16, 4)
    source: Any = whole(tmp_path, {"a": tensor})
    device, found = LateDevice(), torch.zeros(16, 4)
    monkeypatch.setattr(torch.cuda, "Event", lambda: device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(HostMemory, "_pin", lambda self, memory: None)
    wanted = [(n, [Rows("a", n, n + 1)]) for n in range(16)]
    for n, read in StagedReader(source, torch.device("cuda")).windows(wanted):
        device.send(read("a", n, n + 1), found[n : n + 1])
    assert torch.equal(found, tensor) and not device.sent
    assert device.most_sent > 1


def test_a_file_that_becomes_shorter_is_an_error_and_no_weight(tmp_path: Path) -> None:
    source = whole(tmp_path, stored())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="shorter"):
        fill(Fused(), source, prefix="a.")


def test_without_memory_that_can_be_pinned_weights_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: HostMemory, name: str, tensors: object) -> None:
        raise ConfigError("no more of it")

    monkeypatch.setattr(HostMemory, "take", refused)
    module, tensors = Fused(), stored()
    fill(module, whole(tmp_path, tensors), prefix="a.")
    assert torch.equal(module.norm.weight, tensors["a.norm.weight"])


def test_an_offset_is_that_of_the_file(tmp_path: Path) -> None:
    tensors = stored()
    whole(tmp_path, tensors)
    source: Any = open_weights(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    for name, tensor in tensors.items():
        place = source.place_of(name)
        assert data[place.offset :].startswith(tensor.numpy().tobytes()) and place.path.name == "model.safetensors"
