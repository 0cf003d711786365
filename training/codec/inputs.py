"""All that is random in a step of the codec, drawn before it: the step itself can then be one CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from training.clip import FRAME, SAMPLE_RATE
from training.codec.config import Batch, CodecTraining
from training.codec.data import Crops
from training.codec.sounds import Sounds


def draw_inputs(
    config: CodecTraining, sounds: Sounds, crops: Crops, step_number: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw them on the generator's device, without a host sync."""
    b, device = config.batch, generator.device
    seconds, rows = shape_of_step(b, step_number)
    real, labels, guessed = crops.draw(rows, samples_in(seconds), generator)
    told = sounds(labels)
    alone = torch.rand((rows, 1), generator=generator, device=device) >= config.quantizer.told
    length = samples_in(b.adversarial_seconds)
    points = torch.rand(b.adversarial_rows, generator=generator, device=device)
    at = (points * (real.shape[1] - length)).long()[:, None] + torch.arange(length, device=device)
    restart = step_number % config.quantizer.restart_every == 0
    inputs = {
        "real": real,
        "told": told.masked_fill(alone, -1),
        "depth": _depths(config, rows, generator),
        "windows": at,
        "restart": torch.tensor(restart, device=device),
    }
    if guessed is not None:
        as_it_is = torch.rand((rows, 1, 1), generator=generator, device=device) >= b.guessed
        inputs["guessed"] = guessed.masked_fill(as_it_is, -1)
    return inputs


def shape_of_step(batch: Batch, step_number: int) -> tuple[float, int]:
    """(seconds, rows); a long step has as much sound in fewer rows."""
    if step_number % batch.long_every:
        return batch.seconds, batch.rows
    return batch.long_seconds, max(1, round(batch.rows * batch.seconds / batch.long_seconds))


def samples_in(seconds: float) -> int:
    """How many samples so many seconds have, rounded to whole frames."""
    return round(seconds * SAMPLE_RATE / FRAME) * FRAME


def _depths(config: CodecTraining, rows: int, generator: torch.Generator) -> Tensor:
    codebooks = config.shape.codebooks
    some = torch.randint(1, codebooks + 1, (rows,), generator=generator, device=generator.device)
    whole = torch.rand(rows, generator=generator, device=generator.device) < config.quantizer.full_depth
    return some.masked_fill(whole, codebooks)
