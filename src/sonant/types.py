"""The only types that cross layers: what a caller asks for, and what comes back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sonant.errors import BadAudio, BadRequest, BadSampling, BadText

Samples = npt.NDArray[np.float32]


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # the model said it was done
    LENGTH = "length"  # it reached its frame budget first
    ABORT = "abort"  # the caller went away


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How codes are drawn. None means: as the checkpoint's generation_config.json says.

    The names are those of the published generation_config.json; `subtalker_*` governs codebooks after the
    first.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    subtalker_dosample: bool | None = None
    subtalker_temperature: float | None = None
    subtalker_top_k: int | None = None
    subtalker_top_p: float | None = None

    def __post_init__(self) -> None:
        for name in ("do_sample", "subtalker_dosample"):
            if not isinstance(getattr(self, name), bool | None):
                raise BadSampling(f"{name} must be true or false, not {getattr(self, name)!r}")

    def over(self, defaults: Sampling) -> Sampling:
        """These values where they are set, `defaults` elsewhere."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return Sampling(**{k: getattr(defaults, k) if v is None else v for k, v in mine.items()})

    @classmethod
    def greedy(cls) -> Sampling:
        """Always the likeliest code: repeatable, and rarely how speech should sound."""
        return cls(do_sample=False, subtalker_dosample=False)


@dataclass(frozen=True, eq=False)
class Voice:
    """A cloned voice, encoded once and used for any number of requests.

    `codes` and `text` are there for in-context cloning; without them only the timbre (`embedding`) is used.
    """

    embedding: Samples  # [speaker_dim]
    codes: npt.NDArray[np.int32] | None = None  # [frames, codebooks]
    text: str | None = None
    name: str = "clone"
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        if self.embedding.ndim != 1 or not np.isfinite(self.embedding).all():
            raise BadAudio(f"voice {self.name!r}: its embedding must be one row of finite numbers; encode it again")
        codes = self.codes
        if codes is not None and (codes.ndim != 2 or not codes.size or codes.dtype.kind not in "iu" or codes.min() < 0):
            raise BadAudio(f"voice {self.name!r}: its codes must be a table of whole numbers; encode it again")
        h = hashlib.sha256(np.ascontiguousarray(self.embedding).tobytes())
        if self.codes is not None:
            h.update(np.ascontiguousarray(self.codes).tobytes())
        h.update((self.text or "").encode())
        object.__setattr__(self, "fingerprint", h.hexdigest())

    def save(self, path: str | Path) -> None:
        """Write the voice to one .safetensors file, so that it never needs encoding again."""
        tensors: dict[str, npt.NDArray[np.generic]] = {"embedding": self.embedding}
        if self.codes is not None:
            tensors["codes"] = self.codes
        meta = {"text": self.text or "", "name": self.name, "format": "sonant-voice"}
        Path(path).write_bytes(save(tensors, metadata=meta))

    @classmethod
    def load(cls, path: str | Path) -> Voice:
        """Read a voice written by `save`."""
        try:
            with safe_open(str(path), "np") as f:
                meta = f.metadata() or {}
                if meta.get("format") != "sonant-voice":
                    raise BadAudio(f"{path} is not a saved Sonant voice; make one with Voice.save")
                codes = f.get_tensor("codes") if "codes" in f.keys() else None  # noqa: SIM118 (not a mapping)
                embedding = f.get_tensor("embedding")
                return cls(embedding, codes, meta.get("text") or None, meta.get("name", "clone"))
        except (SafetensorError, OSError) as e:
            raise BadAudio(f"{path} cannot be read as a saved voice: {e}") from e


@dataclass(frozen=True, kw_only=True)
class SpeechRequest:
    """One utterance to be spoken. Long texts become several, see `engine/long_text.py`."""

    text: str
    voice: str | Voice | None = None
    language: str = "auto"
    instruct: str | None = None
    sampling: Sampling = Sampling()
    seed: int | None = None  # None: a fresh one each time
    max_frames: int | None = None  # None: a budget from the text's length
    streaming_text: bool | None = None  # feed text as speech goes on; None: the checkpoint's default
    priority: int = 0  # higher goes first
    live: bool = True  # someone is listening: first sound soon, then never a gap

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise BadText(f"the text must be a string, not {type(self.text).__name__}")
        expected: dict[str, tuple[type, ...]] = {
            "voice": (str, Voice, type(None)),
            "language": (str,),
            "instruct": (str, type(None)),
            "sampling": (Sampling,),
            "seed": (int, type(None)),
            "max_frames": (int, type(None)),
            "streaming_text": (bool, type(None)),
            "priority": (int,),
            "live": (bool,),
        }
        for name, kinds in expected.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                names = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
                raise BadRequest(f"{name} must be {names}, not {value!r}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise BadSampling(f"seed must be from 0 to 2**64 - 1, not {self.seed}")
        if self.max_frames is not None and self.max_frames < 1:
            raise BadRequest(f"max_frames must be at least 1, not {self.max_frames}")


@dataclass(frozen=True)
class AudioChunk:
    """A piece of sound, in order, as it leaves the codec."""

    samples: Samples
    sample_rate: int
    start_s: float  # where in the utterance it begins
    codes: npt.NDArray[np.int32]  # [frames, codebooks] that it was made from
    part: int = 0  # of a text that came in parts: which of them it says
    ends_part: bool = False  # nothing more of that part follows


@dataclass(frozen=True)
class Speech:
    """A whole utterance."""

    samples: Samples
    sample_rate: int
    codes: npt.NDArray[np.int32]
    finish_reason: FinishReason
    seed: int
    first_audio_s: float  # from submission to the first chunk
    total_s: float  # from submission to the last

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of sound; below 1 is faster than real time."""
        return self.total_s / self.duration_s if self.duration_s else float("inf")
