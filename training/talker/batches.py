"""Batches straight from device memory: utterances of about one length, their inputs and what to predict.

A row is a prompt and then its frames. The last prompt position predicts the first frame, every frame the next, and
the last frame the stop code. Which utterances form a step depends on its number only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.talker.utterances import Utterances

_ALIGN = 8  # positions; attention kernels are faster on such lengths
_JITTER = 0.1  # how far lengths in one batch may differ, so that batches differ from epoch to epoch


def allow_any_shape() -> None:
    """cuDNN's attention takes a tenth of a second to plan each new shape, and every batch has its own."""
    torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass(frozen=True)
class Batch:
    text: Tensor  # [rows, length]; -1: none
    codes: Tensor  # [rows, length, codebooks]; -1: none
    predicting: Tensor  # [n] places in rows · length whose output is judged
    first: Tensor  # [n] the code to predict there, or the stop code
    chosen: Tensor  # [m] which of those n also train the predictor
    frames: Tensor  # [m, codebooks] the codes of their frames


class Batches:
    def __init__(self, data: Utterances, device: torch.device, *, pad_text: int, stop: int, positions: int) -> None:
        self.device, self.pad_text, self.stop = device, pad_text, stop
        self.prompt_text, self.prompt_code, self.frames = (
            torch.from_numpy(a).to(device) for a in (data.prompt_text, data.prompt_code, data.frames)
        )
        self.prompt_length, self.frame_length = data.prompt_length, data.frame_length
        self.prompt_start = np.cumsum(data.prompt_length) - data.prompt_length
        self.frame_start = np.cumsum(data.frame_length) - data.frame_length
        self.lengths = data.lengths()
        padded = int(1.03 * self.lengths.sum())  # sorted by length, little is lost to padding
        self.per_epoch = max(1, -(-padded // positions))
        self._epoch: tuple[int, int] | None = None
        self._plan: list[NDArray[np.int64]] = []

    def of_step(self, step: int, seed: int) -> NDArray[np.int64]:
        """The utterances of a step: every epoch has each of them once, in batches of its own."""
        epoch, place = divmod(step, self.per_epoch)
        if self._epoch != (seed, epoch):
            self._epoch, self._plan = (seed, epoch), self._cut(np.random.default_rng((seed, epoch)))
        return self._plan[place]

    def _cut(self, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        order = np.argsort(self.lengths * (1 + _JITTER * rng.random(len(self.lengths))), kind="stable")
        total = np.cumsum(self.lengths[order])
        parts = np.split(order, np.searchsorted(total, total[-1] * np.arange(1, self.per_epoch) / self.per_epoch))
        return [parts[i] for i in rng.permutation(self.per_epoch)]

    def make(self, items: NDArray[np.int64], share: float, rng: np.random.Generator) -> Batch:
        """`share` of the frames train the predictor. Host work only until the copies: no sync."""
        prompts, counts = self.prompt_length[items], self.frame_length[items]
        length = int((prompts + counts).max())
        length += -length % _ALIGN
        row = np.repeat(np.arange(len(items)), counts + 1)
        frame = np.arange(len(row)) - np.repeat(np.cumsum(counts + 1) - counts - 1, counts + 1)
        spoken = np.flatnonzero(frame < counts[row])
        chosen = np.sort(rng.permutation(spoken)[: max(1, round(share * len(spoken)))])
        at = self.frame_start[items][row] + frame

        prompt_start, frame_start, prompt_length, frame_length, place, at, chosen = self._send(
            self.prompt_start[items], self.frame_start[items], prompts, counts, row * length + prompts[row] - 1 + frame,
            np.where(frame < counts[row], at, -1), chosen,
        )  # fmt: skip
        text, codes = self._inputs(prompt_start, prompt_length, frame_start, frame_length, length)
        first = torch.where(at >= 0, self.frames[at.clamp(min=0), 0].long(), self.stop)
        return Batch(text, codes, place, first, chosen, self.frames[at[chosen]].long())

    def _inputs(
        self, prompt_start: Tensor, prompt_length: Tensor, frame_start: Tensor, frame_length: Tensor, length: int
    ) -> tuple[Tensor, Tensor]:
        position = torch.arange(length, device=self.device)
        in_prompt = position < prompt_length[:, None]
        ahead = position - prompt_length[:, None]
        in_frames = (ahead >= 0) & (ahead < frame_length[:, None])
        read = (prompt_start[:, None] + position).clamp(max=len(self.prompt_text) - 1)
        heard = (frame_start[:, None] + ahead).clamp(min=0, max=len(self.frames) - 1)
        text = self.prompt_text[read].long().masked_fill(~in_prompt, self.pad_text)
        codes = self.frames[heard].long().masked_fill(~in_frames[..., None], -1)
        codes[..., 0] = torch.where(in_prompt, self.prompt_code[read].long(), codes[..., 0])
        return text, codes

    def _send(self, *arrays: NDArray[np.int64]) -> list[Tensor]:
        """Send all arrays to the device in one copy."""
        flat = torch.from_numpy(np.concatenate(arrays).astype(np.int64))
        if self.device.type == "cuda":
            flat = flat.pin_memory()
        return list(flat.to(self.device, non_blocking=True).split([len(a) for a in arrays]))
