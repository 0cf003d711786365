"""One optimisation step of the codec, and all the state that a later step depends on.

A step's random numbers come from its own number, so a run that was stopped and resumed is the run that was not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from training.branches import Branches
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.discriminators import Discriminators
from training.codec.inputs import draw_inputs, samples_in
from training.codec.losses import SpectralLoss, discriminator_loss, feature_loss, generator_loss
from training.codec.model import Codec
from training.codec.quantizer import Quantized
from training.graphed import Graphed, Tensors
from training.learning_rate import learning_rate
from training.swapped import swapped

_BETAS = (0.8, 0.99)
_CLIP = 1.0
_RATES = (1.0, 0.1)  # relative learning rates of the body, and of the codec's last layer
_KMEANS_BATCHES = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Phase:
    """What a step does besides reconstruction."""

    quantizing: bool
    adversarial: bool
    frozen: bool  # encoder and codebooks stay as they are


class Trainer:
    def __init__(self, config: CodecTraining, device: torch.device) -> None:
        torch.manual_seed(config.batch.seed)
        self.config, self.device = config, device
        self.codec = Codec(config).to(device)
        self.discriminators = Discriminators().to(device)
        self.branches = Branches(device, len(self.discriminators.all))
        self.spectral = SpectralLoss(device)
        self.trained = {n: p for n, p in self.codec.named_parameters() if p.requires_grad}
        self.averaged = {n: p.detach().clone() for n, p in self.trained.items()}
        self.step_number = 0
        self.minutes = 0.0
        self.since_restart = 0  # steps with this optimiser: it needs a warm-up of its own
        self.frozen = False
        self.optimizer = self._optimizer(self.trained.values())
        self.judge_optimizer = self._optimizer(self.discriminators.parameters())
        self.optimise = Graphed(self._optimise, device)
        if device.type == "cuda":
            self._fuse_snakes()

    def _fuse_snakes(self) -> None:
        from training.codec.snake import snake  # needs Triton

        for module in self.codec.snakes():
            forward = lambda x, module=module: snake(x, module.alpha, module.beta)  # noqa: E731
            module.forward = forward  # type: ignore[method-assign]

    def _optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The codec's last layer in a group of its own, since its weights are small and full steps would shake it."""
        s = self.config.schedule
        last = set(self.codec.decoder.decoder[-1].parameters())
        groups = [[], []]  # type: list[list[nn.Parameter]]
        for parameter in parameters:
            groups[parameter in last].append(parameter)
        rates = [s.learning_rate * share for share in _RATES]
        if self.device.type == "cuda":  # a graph reads them anew at each replay
            rates = [torch.tensor(rate, device=self.device) for rate in rates]  # type: ignore[misc]
        options = {"fused": True, "capturable": True} if self.device.type == "cuda" else {}
        grouped = [{"params": g, "lr": r} for g, r in zip(groups, rates, strict=True) if g]
        return torch.optim.AdamW(grouped, rates[0], _BETAS, weight_decay=s.weight_decay, **options)

    def simplify(self, reason: str) -> bool:
        """Go on without graphs; False: that was tried before."""
        if self.optimise.on:
            log.warning("running without CUDA graphs: %s", reason)
            self.optimise.give_up()
            return True
        return False

    # ------------------------------------------------------------------ one step

    def step(self, crops: Crops, progress: float) -> dict[str, Tensor]:
        """`progress` is the share of the whole run that has passed. → losses, still on the device."""
        c = self.config
        generator = torch.Generator(self.device).manual_seed(c.batch.seed * 1_000_003 + self.step_number)
        torch.manual_seed(c.batch.seed * 1_000_003 + self.step_number)  # restarts of idle codes
        if self.step_number == 0:
            self.codec.fit_scales(crops.draw(c.batch.rows, samples_in(c.batch.seconds), generator)[0])
            torch._foreach_copy_(list(self.averaged.values()), [p.detach() for p in self.trained.values()])
        if self.step_number == c.schedule.quantize_after:
            self._start_codebooks(crops)
        phase = Phase(
            quantizing=self.step_number >= c.schedule.quantize_after,
            adversarial=progress >= c.schedule.adversarial_from,
            frozen=progress >= c.schedule.frozen_from,
        )
        if phase.frozen and not self.frozen:
            self._freeze()
        self._set_rates(progress)
        losses = self.optimise(phase, draw_inputs(c, self.codec.sounds, crops, self.step_number, generator))
        self._average()
        self.step_number += 1
        self.since_restart += 1
        return losses

    def _optimise(self, phase: Phase, inputs: Tensors) -> dict[str, Tensor]:
        """Turn a batch into changed weights, without a host sync: this is what a graph holds."""
        w, real = self.config.weights, inputs["real"]
        quantized, made = self._reconstruct(phase, inputs)
        mel, stft = self.spectral(made, real)
        losses = {"mel": mel, "stft": stft}
        (slope,) = torch.autograd.grad(w.mel * mel + w.stft * stft, made)
        judge = None
        if phase.adversarial:
            judge, losses["adversarial"], losses["features"] = self._judge(made, real, inputs["windows"])
            losses["judge"] = judge
            slope = slope + self._wanted_by_judges(losses["adversarial"], losses["features"], made, slope)
        ends, slopes = [made], [slope]
        if quantized is not None and not phase.frozen:
            losses["commitment"] = quantized.commitment
            losses["naming"] = quantized.naming
            ends.append(w.commitment * losses["commitment"] + w.naming * losses["naming"])
            slopes.append(torch.ones_like(ends[-1]))
        learning = [p for p in self.trained.values() if p.requires_grad]
        torch.autograd.backward(ends, slopes, inputs=learning)
        losses["gradient"] = self._descend(self.optimizer)
        if judge is not None:
            judge.backward(inputs=list(self.discriminators.parameters()))
            self._descend(self.judge_optimizer)
        return {n: v.detach() for n, v in losses.items()}

    def _wanted_by_judges(self, adversarial: Tensor, features: Tensor, made: Tensor, slope: Tensor) -> Tensor:
        """The gradient towards fooling the judges, scaled to a set share of the spectral one (EnCodec's balancer).

        Unscaled it grows a hundredfold with the judges' certainty, until nothing else counts.
        """
        w = self.config.weights
        (wanted,) = torch.autograd.grad(adversarial + w.features * features, made, retain_graph=True)
        return wanted * (w.adversarial * slope.norm() / wanted.norm().clamp(min=1e-12))

    def _reconstruct(self, phase: Phase, inputs: Tensors) -> tuple[Quantized | None, Tensor]:
        quantized = None
        with torch.set_grad_enabled(not phase.frozen):
            with self._autocast():
                latents = self.codec.encoder(inputs["real"])
            latents = latents.float()
        if phase.quantizing:
            update = not phase.frozen
            quantized = self.codec.quantizer(
                latents, inputs["depth"], inputs["told"], update=update, restart=inputs["restart"]
            )
        latents = self.codec.quantizer.bypass(latents) if quantized is None else quantized.latents
        if "guessed" in inputs:
            guessed = inputs["guessed"]
            served = self.codec.quantizer.look_up(guessed.clamp(min=0))
            latents = torch.where((guessed[..., 0] >= 0)[:, None], served, latents)
        with self._autocast():
            made = self.codec.decode(latents)
        return quantized, made.float()

    def _judge(self, made: Tensor, real: Tensor, windows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """→ the judges' own loss, and how far `made` is from fooling them by their scores and by their features.

        One pass serves codec and judges: each takes the gradients that concern it.
        """
        both = torch.cat([_windows(real, windows), _windows(made, windows)])

        def verdict(judge: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
            with self._autocast():
                scores, features = judge(both)
            real_scores, made_scores = scores.float().chunk(2)
            own = discriminator_loss(real_scores, made_scores)
            return own, generator_loss(made_scores), feature_loss(features)

        verdicts = self.branches.run([partial(verdict, judge) for judge in self.discriminators.all])
        own, adversarial, features = (torch.stack(each) for each in zip(*verdicts, strict=True))
        return own.sum(), adversarial.sum(), features.mean()

    def _descend(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """Clip the gradients, take a step and clear them → the first group's norm before that."""
        norms = [nn.utils.clip_grad_norm_(group["params"], _CLIP) for group in optimizer.param_groups]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norms[0]

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        """Use bfloat16 on a GPU, and float32 on a CPU."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            yield

    @torch.no_grad()
    def _freeze(self) -> None:
        """Fix encoder and codebooks: from here on codes do not change, so talkers can learn them beside the decoder."""
        self.frozen = True
        for name, parameter in self.trained.items():
            if name.startswith("encoder."):
                parameter.copy_(self.averaged[name]).requires_grad_(False)

    # ------------------------------------------------------------------ schedules

    def _set_rates(self, progress: float) -> None:
        s = self.config.schedule
        rate = learning_rate(s, progress, self.since_restart)
        set_rate(self.optimizer, rate)
        set_rate(self.judge_optimizer, rate * s.discriminator_rate)

    @torch.no_grad()
    def _start_codebooks(self, crops: Crops) -> None:
        generator = torch.Generator(self.device).manual_seed(self.config.batch.seed)
        length = samples_in(self.config.batch.seconds)
        batches = [crops.draw(self.config.batch.rows, length, generator)[0] for _ in range(_KMEANS_BATCHES)]
        with self._autocast():
            latents = [self.codec.encoder(batch) for batch in batches]
        self.codec.sounds.find(crops.labels, generator)
        first = self.codec.sounds.entries(self.config.shape.entry_dim)
        self.codec.quantizer.initialize(torch.cat(latents).float(), first, generator)

    # ------------------------------------------------------------------ the averaged weights

    @torch.no_grad()
    def _average(self) -> None:
        # Young averages follow fast, or the random start would linger in them.
        weight = max(1 - self.config.schedule.ema, 1 / (1 + self.step_number))
        torch._foreach_lerp_(list(self.averaged.values()), list(self.trained.values()), weight)

    @contextmanager
    def averaged_weights(self) -> Iterator[Codec]:
        """The codec with its averaged weights, complete as it would be exported, put back afterwards."""
        with swapped(self.trained, self.averaged):
            self.codec.share_codebooks()
            yield self.codec


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group, share in zip(optimizer.param_groups, _RATES, strict=False):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * share)
        else:
            group["lr"] = rate * share


def _windows(samples: Tensor, at: Tensor) -> Tensor:
    """The samples at `at` [windows, length], one window of each row in turn."""
    rows = torch.arange(len(at), device=at.device) % len(samples)
    return samples.index_select(0, rows).gather(1, at)
