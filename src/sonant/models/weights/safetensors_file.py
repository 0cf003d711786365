"""One safetensors file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sonant.errors import CheckpointError
from sonant.models.weights.source import Read, StoredTensor
from sonant.models.weights.staged import FilePlace

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_PICKLE_STARTS = (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK")


class SafetensorsFile:
    """A file whose header has been read. The constructor refuses what is not a whole safetensors file."""

    def __init__(self, path: Path) -> None:
        check_whole(path)
        self.path = path
        header, self._start = _read_header(path)
        self._offsets = {name: h["data_offsets"][0] for name, h in header.items()}
        tensors = {name: StoredTensor(tuple(h["shape"]), _DTYPES[h["dtype"]]) for name, h in header.items()}
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(tensors)

    @property
    def label(self) -> str:
        return str(self.path)

    def place_of(self, name: str) -> FilePlace:
        return FilePlace(self.path, self._start + self._offsets[name])

    @contextmanager
    def window(self) -> Iterator[Read]:
        with safe_open(str(self.path), "pt") as f:

            def read(name: str, start: int, end: int) -> torch.Tensor:
                if not self.tensors[name].shape:
                    return f.get_tensor(name)[None]
                return f.get_slice(name)[start:end]

            yield read


def check_whole(path: Path) -> None:
    """Refuse a file that is missing, cut short or of another kind, with a message that a person can act on."""
    if not path.exists():
        # Only pickles of the same weights: others in the folder, such as a codec, are no help.
        pickles = sorted(p.name for p in path.parent.glob("*") if p.suffix in _PICKLES and path.stem in p.name)
        hint = f"; {pickles[0]} is a pickle, which can run code when read: convert it to safetensors" if pickles else ""
        raise CheckpointError(f"{path} is missing{hint}")
    try:
        with safe_open(str(path), "pt"):
            pass
    except (SafetensorError, OSError, ValueError) as e:
        if not path.is_file():
            raise CheckpointError(f"{path} is not a file") from e
        with path.open("rb") as f:
            head = f.read(2)
        if head in _PICKLE_STARTS:
            raise CheckpointError(f"{path} is a pickle, not safetensors: convert it, Sonant never unpickles") from e
        raise CheckpointError(
            f"{path} ({path.stat().st_size:,} bytes) is not a whole safetensors file, perhaps a broken download; "
            f"fetch it again ({e})"
        ) from e


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The file's tensors, in file order, and where their data begins. `check_whole` has found the header valid."""
    with path.open("rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        start = f.tell()
    header.pop("__metadata__", None)
    ordered = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
    if strange := [f"{name} of dtype {h['dtype']}" for name, h in ordered if h["dtype"] not in _DTYPES]:
        raise CheckpointError(f"{path} holds {strange[0]}, which Sonant does not read ({', '.join(_DTYPES)})")
    return dict(ordered), start
