"""One optimisation step of the codec, and all the state that a later step depends on.

A step's random numbers come from its own number, so a run that was stopped and resumed is the run that was not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sonant.kernels import reference
from training.clip import FRAME, SAMPLE_RATE
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.discriminators import Discriminators
from training.codec.losses import SpectralLoss, discriminator_loss, feature_loss, generator_loss
from training.codec.model import Codec
from training.codec.quantizer import Quantized

_BETAS = (0.8, 0.99)
_CLIP = 1.0
_KMEANS_BATCHES = 16

Compiling = Literal["nothing", "snake", "whole"]

log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, config: CodecTraining, device: torch.device, compiling: Compiling = "nothing") -> None:
        torch.manual_seed(config.batch.seed)
        self.config, self.device = config, device
        self.codec = Codec(config).to(device)
        self.discriminators = Discriminators().to(device)
        self.spectral = SpectralLoss().to(device)
        self.trained = {n: p for n, p in self.codec.named_parameters() if p.requires_grad}
        self.averaged = {n: p.detach().clone() for n, p in self.trained.items()}
        self.step_number = 0
        self.minutes = 0.0
        self.since_restart = 0  # steps with this optimiser: it needs a warm-up of its own
        fused = {"fused": True} if device.type == "cuda" else {}
        rate, decay = config.schedule.learning_rate, config.schedule.weight_decay
        self.optimizer = torch.optim.AdamW(self.trained.values(), rate, _BETAS, weight_decay=decay, **fused)
        self.judge_optimizer = torch.optim.AdamW(
            self.discriminators.parameters(), rate, _BETAS, weight_decay=decay, **fused
        )
        self.encode: Callable[[Tensor], Tensor] = self.codec.encoder
        self.decode: Callable[[Tensor], Tensor] = self.codec.decode
        self.compiling = compiling
        if compiling == "snake":
            self._compile_snakes()
        elif compiling == "whole":
            self.encode = torch.compile(self.encode, dynamic=False)
            self.decode = torch.compile(self.decode, dynamic=False)

    def _compile_snakes(self) -> None:
        """Fuse the activation alone: most of the gain for seconds of compiling, where the whole takes minutes."""
        torch._dynamo.config.recompile_limit = 32  # widths of two kinds, strides of two kinds, and some for luck
        fused = torch.compile(_snake, dynamic=True)
        for snake in self.codec.snakes():
            # Clones, since the compiler takes a parameter's size for a constant and would start anew for each.
            forward = lambda x, snake=snake: fused(x, snake.alpha.clone(), snake.beta.clone())  # noqa: E731
            snake.forward = forward  # type: ignore[method-assign]

    def uncompile(self, reason: str) -> None:
        log.warning("running without torch.compile: %s", reason)
        self.compiling = "nothing"
        self.encode, self.decode = self.codec.encoder, self.codec.decode
        for snake in self.codec.snakes():
            snake.__dict__.pop("forward", None)

    # ------------------------------------------------------------------ one step

    def step(self, crops: Crops, progress: float) -> dict[str, Tensor]:
        """`progress` is the share of the whole run that has passed. → losses, still on the device."""
        c = self.config
        generator = torch.Generator(self.device).manual_seed(c.batch.seed * 1_000_003 + self.step_number)
        torch.manual_seed(c.batch.seed * 1_000_003 + self.step_number)  # restarts of idle codes
        if self.step_number == 0:
            self.codec.fit_scales(crops.draw(c.batch.rows, _samples(c.batch.seconds), generator)[0])
            torch._foreach_copy_(list(self.averaged.values()), list(self.trained.values()))
        if self.step_number == c.schedule.quantize_after:
            self._start_codebooks(crops)
        self._set_rates(progress)

        seconds, rows = self._shape_of_step()
        real, labels = crops.draw(rows, _samples(seconds), generator)
        quantized, made = self._reconstruct(real, self._depths(rows, generator))
        mel, stft = self.spectral(made, real)
        losses = {"mel": mel, "stft": stft}
        total = c.weights.mel * mel + c.weights.stft * stft
        if quantized is not None:
            losses["commitment"] = quantized.commitment
            losses["semantic"] = self.codec.phoneme_loss(quantized.semantic, labels)
            total = total + c.weights.commitment * losses["commitment"] + c.weights.semantic * losses["semantic"]
        if progress >= c.schedule.adversarial_from:
            windows = self._windows(real, made, generator)
            losses["judge"] = self._train_judges(*windows)
            losses["adversarial"], losses["features"] = self._fool_judges(*windows)
            total = total + c.weights.adversarial * losses["adversarial"] + c.weights.features * losses["features"]
        losses["gradient"] = self._descend(self.optimizer, total, self.trained.values())
        self._average()
        self.step_number += 1
        self.since_restart += 1
        return {n: v.detach() for n, v in losses.items()}

    def _shape_of_step(self) -> tuple[float, int]:
        """(seconds, rows); a long step has as much sound in fewer rows."""
        b = self.config.batch
        if self.step_number % b.long_every:
            return b.seconds, b.rows
        return b.long_seconds, max(1, round(b.rows * b.seconds / b.long_seconds))

    def _reconstruct(self, real: Tensor, depth: Tensor) -> tuple[Quantized | None, Tensor]:
        with self._autocast():
            latents = self.encode(real)
        latents = latents.float()
        quantized = None
        if self.step_number >= self.config.schedule.quantize_after:
            restart = self.step_number % self.config.quantizer.restart_every == 0
            quantized = self.codec.quantizer(latents, depth, update=True, restart=restart)
        with self._autocast():
            made = self.decode(self.codec.quantizer.bypass(latents) if quantized is None else quantized.latents)
        return quantized, made.float()

    def _depths(self, rows: int, generator: torch.Generator) -> Tensor:
        codebooks = self.config.shape.codebooks
        some = torch.randint(1, codebooks + 1, (rows,), generator=generator, device=self.device)
        whole = torch.rand(rows, generator=generator, device=self.device) < self.config.quantizer.full_depth
        return some.masked_fill(whole, codebooks)

    def _windows(self, real: Tensor, made: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The same random windows of both, always of one shape, whatever the crops' shape is."""
        b = self.config.batch
        length = _samples(b.adversarial_seconds)
        row = torch.arange(b.adversarial_rows, device=self.device) % len(real)
        points = torch.rand(b.adversarial_rows, generator=generator, device=self.device)
        at = (points * (real.shape[1] - length)).long()[:, None] + torch.arange(length, device=self.device)
        return real[row[:, None], at], made[row[:, None], at]

    def _train_judges(self, real: Tensor, made: Tensor) -> Tensor:
        with self._autocast():
            scores, _ = self.discriminators(torch.cat([real, made.detach()]))
        halves = [s.float().chunk(2) for s in scores]
        loss = discriminator_loss([h[0] for h in halves], [h[1] for h in halves])
        self._descend(self.judge_optimizer, loss, self.discriminators.parameters())
        return loss

    def _fool_judges(self, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        with self._autocast(), torch.no_grad():
            _, wanted = self.discriminators(real)
        self.discriminators.requires_grad_(False)
        with self._autocast():
            scores, features = self.discriminators(made)
        self.discriminators.requires_grad_(True)
        return generator_loss([s.float() for s in scores]), feature_loss(wanted, features)

    def _descend(self, optimizer: torch.optim.Optimizer, loss: Tensor, parameters: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, _CLIP)
        optimizer.step()
        return norm

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        """bfloat16 on a GPU; a CPU stays in float32."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            yield

    # ------------------------------------------------------------------ schedules

    def _set_rates(self, progress: float) -> None:
        s = self.config.schedule
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        rate = s.final_learning_rate + (s.learning_rate - s.final_learning_rate) * cosine
        rate *= min(1.0, (self.since_restart + 1) / s.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for group in self.judge_optimizer.param_groups:
            group["lr"] = rate * s.discriminator_rate

    @torch.no_grad()
    def _start_codebooks(self, crops: Crops) -> None:
        generator = torch.Generator(self.device).manual_seed(self.config.batch.seed)
        length = _samples(self.config.batch.seconds)
        batches = [crops.draw(self.config.batch.rows, length, generator)[0] for _ in range(_KMEANS_BATCHES)]
        with self._autocast():
            latents = [self.codec.encoder(batch) for batch in batches]
        self.codec.quantizer.initialize(torch.cat(latents).float(), generator)

    # ------------------------------------------------------------------ the averaged weights

    @torch.no_grad()
    def _average(self) -> None:
        # Young averages follow fast, or the random start would linger in them.
        weight = max(1 - self.config.schedule.ema, 1 / (1 + self.step_number))
        torch._foreach_lerp_(list(self.averaged.values()), list(self.trained.values()), weight)

    @contextmanager
    def averaged_weights(self) -> Iterator[Codec]:
        """The codec with its averaged weights, complete as it would be exported, put back afterwards."""
        kept = {n: p.detach().clone() for n, p in self.trained.items()}
        with torch.no_grad():
            for name, p in self.trained.items():
                p.copy_(self.averaged[name])
            self.codec.share_codebooks()
        try:
            yield self.codec
        finally:
            with torch.no_grad():
                for name, p in self.trained.items():
                    p.copy_(kept[name])


def _snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Worked out in float32, kept in the width that it came in."""
    return reference.snake_beta(x, alpha, beta).to(x.dtype)


def _samples(seconds: float) -> int:
    return round(seconds * SAMPLE_RATE / FRAME) * FRAME
