"""Fills modules from safetensors files: every tensor accounted for, nothing held twice.

Our modules carry the published tensor names, but for projections that we fuse; `FUSED` is the whole rename
table. A file is read in windows of at most `WINDOW_BYTES`: each is a mapping of its own, dropped before the
next, so that peak memory is the weights plus one window, not the weights twice.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from sonant.errors import CheckpointError

WINDOW_BYTES = 128 << 20
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


Layout = dict[str, tuple[tuple[int, ...], int]]  # name → shape, bytes
Piece = tuple[str, int, int]  # rows [start, end) of a stored tensor


@dataclass(frozen=True)
class _Target:
    """Where one stored tensor goes: a parameter, from row `start` on."""

    param: torch.Tensor
    start: int


def stored_names(name: str) -> tuple[str, ...]:
    """The published tensors that make up our parameter `name`."""
    for fused, parts in FUSED.items():
        if f".{fused}." in name:
            return tuple(name.replace(f".{fused}.", f".{part}.") for part in parts)
    return (name,)


def check_file(path: Path) -> None:
    """Refuse what is not a whole safetensors file, with a reason a person can act on."""
    if not path.exists():
        pickles = sorted(p.name for p in path.parent.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
        hint = f"; {pickles[0]} is a pickle, which can run code when read: convert it to safetensors" if pickles else ""
        raise CheckpointError(f"{path} is missing{hint}")
    try:
        with safe_open(str(path), "pt"):
            pass
    except (SafetensorError, OSError, ValueError) as e:
        with path.open("rb") as f:
            head = f.read(8)
        size = path.stat().st_size
        if head[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK"):
            raise CheckpointError(f"{path} is a pickle, not safetensors: convert it, Sonant never unpickles") from e
        raise CheckpointError(
            f"{path} ({size:,} bytes) is not a whole safetensors file, perhaps a broken download; fetch it again ({e})"
        ) from e


def tensor_layout(path: Path) -> Layout:
    """What the file holds, in file order, from the header alone."""
    with path.open("rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    header.pop("__metadata__", None)
    ordered = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
    return {n: (tuple(h["shape"]), h["data_offsets"][1] - h["data_offsets"][0]) for n, h in ordered}


def load_into(module: nn.Module, path: Path, *, prefix: str = "", unused: Collection[str] = ()) -> None:
    """Fill every parameter and buffer of `module` (already on its device and dtype) from `path`.

    Tensors whose names start with one of `unused` are known and left alone. A missing, unexpected or
    mis-shaped tensor raises `CheckpointError` with its name.
    """
    check_file(path)
    layout = tensor_layout(path)
    targets = _targets(module, prefix, layout, path)
    extra = [n for n in layout if n not in targets and not n.startswith(tuple(unused))]
    if extra:
        raise CheckpointError(f"{path} holds {_some(extra)}, unknown to this model: a wrong or newer checkpoint?")
    for window in windows({name: layout[name] for name in targets}):
        with safe_open(str(path), "pt") as f, torch.no_grad():
            for name, start, end in window:
                at = targets[name].start
                targets[name].param[at + start : at + end].copy_(f.get_slice(name)[start:end])


def _targets(module: nn.Module, prefix: str, layout: Layout, path: Path) -> dict[str, _Target]:
    targets: dict[str, _Target] = {}
    missing: list[str] = []
    for name, param in module.state_dict(keep_vars=True).items():
        start = 0
        for stored in stored_names(prefix + name):
            if stored not in layout:
                missing.append(stored)
                continue
            shape = layout[stored][0]
            if shape[1:] != param.shape[1:] or start + shape[0] > param.shape[0]:
                raise CheckpointError(
                    f"{path}: {stored} has shape {list(shape)}, but config.json asks for "
                    f"{[param.shape[0] - start, *param.shape[1:]]}"
                )
            targets[stored] = _Target(param.data, start)
            start += shape[0]
        if not missing and start != param.shape[0]:
            raise CheckpointError(f"{path}: {stored} ends at row {start} of {param.shape[0]} that config.json asks for")
    if missing:
        raise CheckpointError(f"{path} lacks {_some(missing)}")
    return targets


def windows(layout: Layout) -> Iterator[list[Piece]]:
    """The tensors in order, in groups of at most `WINDOW_BYTES`; a larger tensor is cut by rows."""
    window: list[Piece] = []
    held = 0
    for name, (shape, size) in layout.items():
        rows_at_once = max(1, WINDOW_BYTES * shape[0] // max(size, 1))
        for start in range(0, shape[0], rows_at_once):
            end = min(start + rows_at_once, shape[0])
            part = size * (end - start) // shape[0]
            if window and held + part > WINDOW_BYTES:
                yield window
                window, held = [], 0
            window.append((name, start, end))
            held += part
    if window:
        yield window


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more tensors" if len(names) > 4 else "")
