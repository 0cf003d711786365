"""Reads Whisper checkpoints in whisper.cpp's format (`ggml-base.en.bin`), which some npm packages contain too.

All numbers are little-endian and four bytes wide: a magic number, eleven sizes, the mel filters, the words of the
vocabulary, and then for each tensor its number of dimensions, the length of its name, its type, its dimensions (the
last first), its name and its values.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sonant.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_MARK = 0x67676D6C  # "ggml"
# openai-whisper's names of the sizes, in the file's order; the type of the weights follows them.
_SIZES = (
    "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer",
    "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels",
)  # fmt: skip
_TYPES: Mapping[int, type[np.floating]] = {0: np.float32, 1: np.float16}


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    @property
    def has_more(self) -> bool:
        return self.at < len(self.data)

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if count < 0 or len(found) < count:
            raise ConfigError(f"--asr {self.path} breaks off after {len(self.data):,} bytes: fetch it again")
        self.at += count
        return found

    def whole(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", self.take(4 * count))

    def tensor(self) -> tuple[str, np.ndarray]:
        dimensions, letters, kind = self.whole(3)
        shape = self.whole(dimensions)[::-1]
        name = self.take(letters).decode()
        if kind not in _TYPES:
            raise ConfigError(f"--asr {self.path} has quantised weights ({name}); give one in 16 or 32 bits")
        dtype = np.dtype(_TYPES[kind]).newbyteorder("<")
        return name, np.frombuffer(self.take(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def is_ggml(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == struct.pack("<i", _MARK)


def read_ggml(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Its sizes and its weights, under the names and in the shapes that openai-whisper gives them."""
    import torch

    reader = _Reader(path)
    reader.take(4)
    *sizes, _ = reader.whole(len(_SIZES) + 1)
    bands, bins = reader.whole(2)
    reader.take(4 * bands * bins)
    for _ in range(reader.whole(1)[0]):
        reader.take(reader.whole(1)[0])
    tensors = {}
    while reader.has_more:
        name, values = reader.tensor()
        # A convolution's bias is stored as a column, to be added to channels over time.
        shaped = values.reshape(-1) if name.endswith(("conv1.bias", "conv2.bias")) else values
        tensors[name] = torch.from_numpy(shaped.astype(np.float32))
    return dict(zip(_SIZES, sizes, strict=True)), tensors
