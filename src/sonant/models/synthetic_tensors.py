"""Random tensors in the published file format, for the checkpoints that families make for tests and benchmarks.

Each tensor is drawn from a generator seeded by its own name, so that a checkpoint is the same whenever and in whatever
order it is made. The family decides how widely each is spread.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

STORED_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}

Shape = tuple[int, ...]
Entry = tuple[str, Shape]  # a tensor of a file
Draw = Callable[[str, Shape, torch.Generator], torch.Tensor]  # a float32 tensor whose spread suits its name
Edit = Callable[[torch.Tensor], object]


def linear(name: str, outputs: int, inputs: int) -> Iterator[Entry]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def conv(name: str, outputs: int, inputs: int, kernel: int = 1) -> Iterator[Entry]:
    yield f"{name}.weight", (outputs, inputs, kernel)
    yield f"{name}.bias", (outputs,)


@dataclass(frozen=True)
class RandomTensors:
    """All tensors of a file. CPU and GPU draw different values."""

    shapes: Mapping[str, Shape]
    draw: Draw
    seed: int
    device: torch.device
    edits: Mapping[str, Edit] = field(default_factory=dict)  # in-place changes, by the tensor's name

    def tensor(self, name: str) -> torch.Tensor:
        """Draw one tensor, in float32."""
        generator = torch.Generator(device=self.device)
        generator.manual_seed((zlib.crc32(name.encode()) ^ self.seed) & 0x7FFFFFFF)
        value = self.draw(name, self.shapes[name], generator)
        if name in self.edits:
            self.edits[name](value)
        return value

    def write(self, path: Path, dtype: torch.dtype, stored: Mapping[str, str] | None = None) -> None:
        """Draw and store one tensor at a time: a full-size model then needs memory for its largest tensor only.

        `stored` maps the tensors to be written to their names in the file; without it all are written by their own
        names. safetensors' own writer needs all tensors at once. The format is simple: the length of a JSON header,
        the header with each tensor's place, then the bytes.
        """
        names = {name: name for name in self.shapes} if stored is None else stored
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, stored_name in names.items():
            start, end = end, end + math.prod(self.shapes[name]) * dtype.itemsize
            place = {"dtype": STORED_NAMES[dtype], "shape": self.shapes[name], "data_offsets": [start, end]}
            header[stored_name] = place
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the data begins on a multiple of eight bytes
        with path.open("wb") as f:
            f.write(struct.pack("<Q", len(text)))
            f.write(text)
            for name in names:
                self.tensor(name).to(dtype).cpu().view(torch.uint8).numpy().tofile(f)
