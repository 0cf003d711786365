"""Fills modules from stored tensors: every tensor accounted for, nothing held twice.

A source is read in windows of at most `WINDOW_BYTES`: each is a mapping of its own, dropped before the next, so that
peak memory is the weights plus one window, not the weights twice. Tensors for a GPU are read ahead by `staged.py` if
files hold them as plain bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from sonant.errors import CheckpointError
from sonant.kernels.reference import QuantizedWeight, Weight, quantize_rows
from sonant.layers.quantized import QuantizedLinear
from sonant.layers.transformer import quantize_projections
from sonant.models.weight_blocks import LookupTable, WeightBlock
from sonant.models.weights.host_memory import HostMemory
from sonant.models.weights.naming import Naming
from sonant.models.weights.source import Read, TensorSource
from sonant.models.weights.staged import BUFFER_BYTES, Placed, Rows, StagedReader

WINDOW_BYTES = 128 << 20
_QUANTIZED_AT_ONCE = 2 << 20  # elements: quantising makes several copies of them in float32
M = TypeVar("M", bound=nn.Module)
Movable = WeightBlock | LookupTable


@dataclass(frozen=True, eq=False)
class Filling:
    """Rows of a parameter and the stored tensors that they come from, row by row."""

    target: Weight
    stored: tuple[str, ...]  # one tensor, or weight norm's magnitude and direction
    row_bytes: int

    def fill(self, read: Read, start: int, end: int, *, wait: bool = True) -> None:
        """Without `wait` what was read must stay valid until the device has copied it."""
        values = [read(name, start, end) for name in self.stored]
        rows = values[0] if len(values) == 1 else fold_weight_norm(*values)
        put(_rows(self.target, start, end), rows, wait=wait)

    @property
    def device(self) -> torch.device:
        return (self.target.values if isinstance(self.target, QuantizedWeight) else self.target).device

    @property
    def rows(self) -> int:
        return self.target.shape[0]


@dataclass(frozen=True, eq=False)
class Piece:
    filling: Filling
    start: int
    end: int


def allocate(
    module: M,
    device: torch.device,
    dtype: torch.dtype,
    host: HostMemory | None = None,
    movable: Sequence[Movable] = (),
    *,
    quantize: str | None = None,
) -> M:
    """Allocate memory, to be filled, for a module made on the meta device. The dtype is set before there is memory, so
    that nothing is allocated twice. What is `movable` and named by `host` is allocated there instead. `quantize`: the
    projections of its layers get weights of eight bits.

    `to_empty` is not used: it calls `empty_like` on meta tensors, for which torch imports sympy, half a second.
    """

    module = module.to(dtype)
    if quantize is not None:
        quantize_projections(module)
    away: dict[int, torch.Tensor] = {}
    for part in movable:
        if host is not None and part.name in host.names:
            held = [getattr(h.owner, h.name) for h in part.tensors()]
            away |= zip(map(id, held), host.take(part.name, held).views(), strict=True)

    def memory(like: torch.Tensor) -> torch.Tensor:
        if id(like) in away:
            return away[id(like)]
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)

    return module._apply(memory).eval().requires_grad_(False)


def weight_bytes(*modules: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for module in modules for p in module.parameters())


def load_into(
    module: nn.Module,
    source: TensorSource,
    *,
    prefix: str = "",
    unused: Collection[str] = (),
    naming: Naming | None = None,
) -> None:
    """Fill every parameter and buffer of `module` (already on its device and dtype) from `source`.

    Stored names, as renamed by `naming`, are the module's names after `prefix`. Tensors whose stored names start with
    one of `unused` are known and skipped. A missing, unexpected or mis-shaped tensor raises `CheckpointError` with its
    name. On the meta device all is checked and nothing is read.
    """
    fillings = _plan(module, source, prefix, unused, naming or Naming())
    wanted = [f for f in fillings if f.device.type != "meta"]
    gpu = next((f.device for f in wanted if f.device.type == "cuda"), None)
    if gpu is not None and isinstance(source, Placed):
        fill_staged(wanted, source, gpu)
        return
    for window in windows(wanted):
        with source.window() as read, torch.no_grad():
            for piece in window:
                piece.filling.fill(read, piece.start, piece.end)


@torch.no_grad()
def fill_staged(fillings: Sequence[Filling], source: Placed, device: torch.device) -> None:
    """Fill them by way of pinned buffers."""
    each = [
        (window, [Rows(name, piece.start, piece.end) for piece in window for name in piece.filling.stored])
        for window in windows(fillings, BUFFER_BYTES)
    ]
    for window, read in StagedReader(source, device).windows(each):
        for piece in window:
            piece.filling.fill(read, piece.start, piece.end, wait=False)


def put(place: Weight, rows: torch.Tensor, *, wait: bool = True) -> None:
    """Copy stored rows to their place. If it holds quantised values, rows are quantised on its own device, a few at a
    time, since they are wider until then."""
    if not isinstance(place, QuantizedWeight):
        place.copy_(rows, non_blocking=not wait)
        return
    at_once = max(1, _QUANTIZED_AT_ONCE // max(1, rows[0].numel()))
    for start in range(0, len(rows), at_once):
        some = slice(start, min(start + at_once, len(rows)))
        values, scale = quantize_rows(rows[some].to(place.values.device))
        place.values[some].copy_(values)
        place.scale[some].copy_(scale[:, 0])


def _rows(weight: Weight, start: int, end: int) -> Weight:
    if isinstance(weight, QuantizedWeight):
        return QuantizedWeight(weight.values[start:end], weight.scale[start:end])
    return weight[start:end]


def targets(module: nn.Module) -> Iterator[tuple[str, Weight]]:
    """All tensors to be filled, by the names that they would have if nothing were quantised."""
    quantized = {name: part for name, part in module.named_modules() if isinstance(part, QuantizedLinear)}
    for name, param in module.state_dict(keep_vars=True).items():
        owner, _, own = name.rpartition(".")
        if owner not in quantized:
            yield name, param.data
        elif own == "values":
            yield f"{owner}.weight", QuantizedWeight(quantized[owner].values.data, quantized[owner].scale.data)


def fold_weight_norm(magnitude: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Both [rows, …] → the weight, in float32. The norm is over all but the first dimension.

    That holds for transposed convolutions too, whose first dimension is their inputs.
    """
    g, v = magnitude.float(), direction.float()
    rows = (-1, *[1] * (v.dim() - 1))
    return v * (g.flatten() / v.reshape(len(v), -1).norm(dim=1)).view(rows)


def windows(fillings: Sequence[Filling], most_bytes: int | None = None) -> Iterator[list[Piece]]:
    """The fillings in order, in groups of at most `most_bytes`, or `WINDOW_BYTES`; a larger one is split by rows."""
    most_bytes = most_bytes or WINDOW_BYTES
    window: list[Piece] = []
    held = 0
    for filling in fillings:
        rows, rows_at_once = filling.rows, max(1, most_bytes // max(filling.row_bytes, 1))
        for start in range(0, rows, rows_at_once):
            end = min(start + rows_at_once, rows)
            part = filling.row_bytes * (end - start)
            if window and held + part > most_bytes:
                yield window
                window, held = [], 0
            window.append(Piece(filling, start, end))
            held += part
    if window:
        yield window


def _plan(
    module: nn.Module, source: TensorSource, prefix: str, unused: Collection[str], naming: Naming
) -> list[Filling]:
    """The fillings of all tensors, in the order in which they are stored."""
    ignored = tuple(unused)
    ours = naming.renamed((n for n in source.tensors if not n.startswith(ignored)), source.label)
    fillings: list[Filling] = []
    missing: list[str] = []
    for name, target in targets(module):
        parts = naming.parts(prefix + name, ours)
        lacks = [part for group in parts for part in group if part not in ours]
        missing += lacks
        if not lacks:
            fillings += _fill_parameter(target, [tuple(ours[n] for n in group) for group in parts], source)
    if missing:
        raise CheckpointError(f"{source.label} lacks {_some(missing)}")
    taken = {stored for filling in fillings for stored in filling.stored}
    if extra := [n for n in ours.values() if n not in taken]:
        raise CheckpointError(
            f"{source.label} holds {_some(extra)}, unknown to this model: a wrong or newer checkpoint?"
        )
    order = {name: at for at, name in enumerate(source.tensors)}
    return sorted(fillings, key=lambda filling: order[filling.stored[-1]])


def _fill_parameter(target: Weight, parts: Sequence[tuple[str, ...]], source: TensorSource) -> Iterator[Filling]:
    """The parts of one parameter follow each other along its rows and fill it exactly."""
    start = 0
    shape, floating = target.shape, isinstance(target, QuantizedWeight) or target.dtype.is_floating_point
    rows = target if isinstance(target, QuantizedWeight) or shape else target[None]
    count = rows.shape[0]
    for group in parts:
        stored = source.tensors[group[-1]]
        if len(stored.shape) != len(shape) or stored.shape[1:] != shape[1:] or start + stored.rows > count:
            wanted = [count - start, *shape[1:]] if shape else []
            raise CheckpointError(
                f"{source.label}: {group[-1]} has shape {list(stored.shape)}, but config.json asks for {wanted}"
            )
        if stored.dtype.is_floating_point != floating:
            kind = "a floating-point number" if floating else "a whole number"
            raise CheckpointError(f"{source.label}: {group[-1]} is stored as {stored.dtype}, not as {kind}")
        if floating and stored.dtype.itemsize == 1:
            raise CheckpointError(
                f"{source.label}: {group[-1]} is quantised already ({stored.dtype}), and what to multiply it by is not "
                "known here: give the checkpoint as it was published; --quantize fp8 quantises it"
            )
        yield Filling(_rows(rows, start, start + stored.rows), group, _bytes_of_row(group, source))
        start += stored.rows
    if start != count:
        raise CheckpointError(
            f"{source.label}: {parts[-1][-1]} ends at row {start} of {count} that config.json asks for"
        )


def _bytes_of_row(group: tuple[str, ...], source: TensorSource) -> int:
    stored = source.tensors[group[-1]]
    if len(group) == 1:
        return stored.row_bytes
    magnitude = source.tensors[group[0]]
    if magnitude.rows != stored.rows or magnitude.row_bytes != magnitude.dtype.itemsize:
        raise CheckpointError(
            f"{source.label}: {group[0]} has shape {list(magnitude.shape)}, but weight norm has one number for "
            f"each of the {stored.rows} rows of {group[-1]}"
        )
    return 3 * stored.row_bytes // stored.dtype.itemsize * torch.float32.itemsize  # as read, then twice in float32


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more tensors" if len(names) > 4 else "")
