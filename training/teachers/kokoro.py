"""Kokoro-82M (Apache-2.0) in batches on a GPU: many voices, better than any other teacher at hand.

Its decoder normalises over time, so padding would change the sound. Instead sentences are grouped by their exact
number of phonemes, and then by their exact number of frames: a batch has no padding and every clip is what the
model says alone. With thousands of sentences at hand most groups are full.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

T = TypeVar("T")

UNIT = 600  # samples of one frame of its durations
_STYLE = 128  # a voice is two styles, of the decoder and of the prosody, end to end
_MOST_TOKENS = 508
_BATCH_TOKENS, _BATCH_FRAMES, _BATCH_ROWS = 12_000, 12_000, 96


@dataclass(frozen=True)
class Line:
    """One sentence for one voice. `index` says whose it is when batches come back out of order."""

    index: int
    ids: tuple[int, ...]
    voice: str


@dataclass
class _Timed:
    line: Line
    prosody: Tensor  # [tokens, features]
    text: Tensor  # [features, tokens]
    style: Tensor  # [256]
    durations: Tensor  # [tokens], on the CPU


class Kokoro(nn.Module):
    """The published modules under their published names, with weight norm folded away."""

    def __init__(self, package: Path, config: dict[str, Any]) -> None:
        super().__init__()
        modules, istftnet = _import_parts(package)
        from transformers import AlbertConfig

        self.bert = modules.CustomAlbert(AlbertConfig(vocab_size=config["n_token"], **config["plbert"]))
        self.bert_encoder = nn.Linear(self.bert.config.hidden_size, config["hidden_dim"])
        self.predictor = modules.ProsodyPredictor(
            style_dim=config["style_dim"],
            d_hid=config["hidden_dim"],
            nlayers=config["n_layer"],
            max_dur=config["max_dur"],
            dropout=config["dropout"],
        )
        self.text_encoder = modules.TextEncoder(
            channels=config["hidden_dim"],
            kernel_size=config["text_encoder_kernel_size"],
            depth=config["n_layer"],
            n_symbols=config["n_token"],
        )
        self.decoder = istftnet.Decoder(
            dim_in=config["hidden_dim"],
            style_dim=config["style_dim"],
            dim_out=config["n_mels"],
            **config["istftnet"],
        )
        for module in self.modules():
            if hasattr(module, "weight_g"):
                nn.utils.remove_weight_norm(module)
            elif nn.utils.parametrize.is_parametrized(module, "weight"):  # as newer releases of torch have it
                nn.utils.parametrize.remove_parametrizations(module, "weight")

    @torch.no_grad()
    def time(self, ids: Tensor, styles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids [B, N], all of one length → prosody features, text features, and how many frames each token lasts."""
        lengths = torch.full((ids.shape[0],), ids.shape[1], dtype=torch.long)
        padded = torch.zeros_like(ids, dtype=torch.bool)
        hidden = self.bert_encoder(self.bert(ids, attention_mask=(~padded).int())).mT
        prosody = self.predictor.text_encoder(hidden, styles[:, _STYLE:], lengths, padded)
        duration = torch.sigmoid(self.predictor.duration_proj(self.predictor.lstm(prosody)[0])).sum(-1)
        text = self.text_encoder(ids, lengths, padded)
        return prosody, text, duration.round().clamp(min=1).long()

    @torch.no_grad()
    def speak(self, prosody: Tensor, text: Tensor, styles: Tensor) -> Tensor:
        """Features stretched to frames, [B, C, F] each → samples [B, F · UNIT]."""
        pitch, noise = self.predictor.F0Ntrain(prosody, styles[:, _STYLE:])
        return self.decoder(text, pitch, noise, styles[:, :_STYLE])[:, 0]


class KokoroTeacher:
    def __init__(self, folder: Path, device: torch.device) -> None:
        config = json.loads((folder / "kokoro-config.json").read_text(encoding="utf-8"))
        self.vocabulary: dict[str, int] = config["vocab"]
        self.device = device
        model = Kokoro(folder / "python" / "kokoro", config)
        missing, unexpected = model.load_state_dict(_unpacked(folder), strict=False)
        # The exports leave out a pooler that is not used and the gains of norms that are one.
        wrong = [n for n in missing if ".norm." not in n and not n.startswith("bert.pooler")]
        if wrong or unexpected:
            raise ValueError(f"Kokoro weights: missing {wrong[:3]}, unexpected {unexpected[:3]}")
        self.model = model.eval().to(device)
        voices = load_file(folder / "kokoro-voices.safetensors")
        self.voices = {name: voice.float().to(device) for name, voice in voices.items()}

    def line(self, index: int, phonemes: str, voice: str) -> Line:
        return Line(index, tuple(self.vocabulary[c] for c in phonemes if c in self.vocabulary)[:_MOST_TOKENS], voice)

    def read(self, lines: Iterable[Line]) -> Iterator[tuple[list[Line], Tensor, list[Tensor]]]:
        """Batches of lines, their samples [B, S] on the device and each line's durations, with pads at both ends."""
        timed: list[_Timed] = []
        for batch in grouped([x for x in lines if x.ids], lambda x: len(x.ids), _BATCH_TOKENS):
            timed += self._time(batch)
        batches = list(grouped(timed, lambda x: int(x.durations.sum()), _BATCH_FRAMES))
        Random(0).shuffle(batches)  # a time limit shall not cut off the long ones alone
        for group in batches:
            frames = [torch.arange(len(x.durations)).repeat_interleave(x.durations) for x in group]
            at = torch.stack(frames).to(self.device, non_blocking=True)
            prosody = torch.stack([x.prosody[i].mT for x, i in zip(group, at, strict=True)])
            text = torch.stack([x.text[:, i] for x, i in zip(group, at, strict=True)])
            samples = self.model.speak(prosody, text, torch.stack([x.style for x in group]))
            yield [x.line for x in group], samples, [x.durations for x in group]

    def _time(self, batch: Sequence[Line]) -> list[_Timed]:
        ids = torch.tensor([[0, *x.ids, 0] for x in batch], device=self.device)
        styles = torch.stack([self.voices[x.voice][len(x.ids) - 1, 0] for x in batch])
        prosody, text, durations = self.model.time(ids, styles)
        on_host = durations.cpu()
        return [_Timed(x, prosody[i], text[i], styles[i], on_host[i]) for i, x in enumerate(batch)]


def grouped(items: Iterable[T], size: Callable[[T], int], budget: int) -> Iterator[list[T]]:
    """Lists of items of one size, each at most `budget` in sum: what may run as a batch without padding."""
    groups: dict[int, list[T]] = defaultdict(list)
    for item in items:
        groups[size(item)].append(item)
    for each, members in sorted(groups.items()):
        rows = max(1, min(_BATCH_ROWS, budget // max(1, each)))
        for i in range(0, len(members), rows):
            yield members[i : i + rows]


def _unpacked(folder: Path) -> dict[str, Tensor]:
    """Half floats as they are; bytes times the scale of their row (see carry.py)."""
    stored: dict[str, Tensor] = {}
    for part in sorted(folder.glob("kokoro-weights-*.safetensors")):
        stored |= load_file(part)
    return {
        name: value.float() * stored[f"{name}@scale"] if value.dtype == torch.int8 else value.float()
        for name, value in stored.items()
        if not name.endswith("@scale")
    }


def _import_parts(package: Path) -> tuple[ModuleType, ModuleType]:
    """kokoro's model code without its __init__, which would pull in a phonemizer and its models."""
    if "kokoro" not in sys.modules:
        stub = ModuleType("kokoro")
        stub.__path__ = [str(package)]
        sys.modules["kokoro"] = stub
        transform = ModuleType("kokoro.custom_stft")  # for exports only, and it needs one more package
        transform.CustomSTFT = None  # type: ignore[attr-defined]
        sys.modules["kokoro.custom_stft"] = transform
    return importlib.import_module("kokoro.modules"), importlib.import_module("kokoro.istftnet")
