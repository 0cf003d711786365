"""A cloned voice: named tensors that its family made from a clip, encoded once and used for any number of requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sonant.errors import BadAudio

_FORMAT = "sonant-voice"
_KINDS = frozenset({"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"})  # that numpy has
Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Voice:
    """The family knows what the tensors are, and checks them when the voice is used.

    `text` is what the clip says, if the voice is to be continued and not only imitated.
    """

    tensors: Tensors
    text: str | None = None
    name: str = "clone"
    family: str | None = None  # the one that encoded it; None in files from before it was recorded
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.tensors:
            raise BadAudio(f"voice {self.name!r} holds nothing; encode it again")
        found = hashlib.sha256((self.text or "").encode())
        for name, tensor in sorted(self.tensors.items()):
            if not tensor.size or tensor.dtype.kind not in "iuf" or not np.isfinite(tensor).all():
                raise BadAudio(f"voice {self.name!r}: its {name} must be finite numbers; encode it again")
            found.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            found.update(np.ascontiguousarray(tensor).tobytes())
        # A strided tensor, such as a transpose, would be written by safetensors as it lies in memory.
        object.__setattr__(self, "tensors", {n: np.asarray(t, order="C") for n, t in self.tensors.items()})
        object.__setattr__(self, "fingerprint", found.hexdigest())

    def to_bytes(self) -> bytes:
        """The content of a saved voice."""
        meta = {"text": self.text or "", "name": self.name, "format": _FORMAT}
        if self.family is not None:
            meta["family"] = self.family
        return save(dict(self.tensors), metadata=meta)

    def save(self, path: str | Path) -> None:
        """Write the voice to one .safetensors file, so that it never needs encoding again."""
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        try:  # An older file stays until this one is whole.
            part.write_bytes(self.to_bytes())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> Voice:
        """Read a voice written by `save`, by this version or an older one."""
        try:
            with safe_open(str(path), "np") as f:
                meta = f.metadata() or {}
                if meta.get("format") != _FORMAT:
                    raise BadAudio(f"{path} is not a saved Sonant voice; make one with Voice.save")
                names = list(f.keys())
                for name in names:
                    if (kind := f.get_slice(name).get_dtype()) not in _KINDS:
                        raise BadAudio(
                            f"{path}: its {name} is stored as {kind}, which no saved voice is; encode it again"
                        )
                tensors = {name: f.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as e:
            raise BadAudio(f"{path} cannot be read as a saved voice: {e}") from e
        return cls(tensors, meta.get("text") or None, meta.get("name", "clone"), meta.get("family"))
