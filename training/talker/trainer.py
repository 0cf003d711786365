"""One optimisation step of talker and predictor, and all the state that a later step depends on.

A step's random numbers come from its own number, so a run that was stopped and resumed is the run that was not.
Gradients stay on throughout, validation included: without them the ops would pick kernels made for serving.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.layers.attention import FullContext
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.talker import Talker
from training.learning_rate import learning_rate
from training.swapped import swapped
from training.talker.batches import Batch, Batches
from training.talker.config import TalkerTraining
from training.talker.guide import guide_batch

_BETAS = (0.9, 0.95)
_SPREAD = 0.02
_STEPS_APART = 1_000_003  # between the seeds of two runs

log = logging.getLogger(__name__)


def initialize(talker: Talker) -> None:
    """Small normal weights; the ends of residual branches smaller still, by the depth of their stack."""
    for module in talker.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_SPREAD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    for stack in (talker.model, talker.code_predictor.model):
        for name, weight in stack.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=_SPREAD / math.sqrt(2 * len(stack.layers)))


class Trainer:
    def __init__(
        self, config: TalkerTraining, model: Qwen3TTSConfig, device: torch.device, *, compiled: bool = False
    ) -> None:
        torch.manual_seed(config.batch.seed)
        self.config, self.device = config, device
        self.book = model.predictor.vocab_size
        self.around_text = model.tts_bos_token_id, model.tts_eos_token_id
        self.talker = Talker(model.talker, model.predictor)
        initialize(self.talker)
        self.talker.to(device)
        self.averaged = {n: p.detach().clone() for n, p in self.talker.named_parameters()}
        self.step_number = 0
        self.minutes = 0.0
        self.since_restart = 0  # steps with this optimiser: it needs a warm-up of its own
        self.optimizer = self._optimizer()
        self.stack: Callable[..., Tensor] = self.talker.model
        self._plain_predict = self.talker.code_predictor.forced_logits
        self.predict: Callable[..., Tensor] = self._plain_predict
        self.dropping = False
        for stack in (self.talker.model, self.talker.code_predictor.model):
            for layer in stack.layers:
                for end in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    end.register_forward_hook(self._drop)
        self.compiled = compiled
        if compiled:
            self.stack = cast(Callable[..., Tensor], torch.compile(self.stack, dynamic=True))
            self.predict = torch.compile(self.predict, dynamic=True)

    def _optimizer(self) -> torch.optim.Optimizer:
        s = self.config.schedule
        matrices = [p for p in self.talker.parameters() if p.ndim > 1]
        others = [p for p in self.talker.parameters() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": s.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, s.learning_rate, _BETAS, fused=self.device.type == "cuda")

    def _drop(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """The served modules have no dropout; training adds it to what each residual branch adds."""
        return F.dropout(output, self.config.noise.branches) if self.dropping else output

    def uncompile(self, reason: str) -> None:
        log.warning("running without torch.compile: %s", reason)
        self.compiled = False
        self.stack, self.predict = self.talker.model, self._plain_predict

    # ------------------------------------------------------------------ one step

    def step(self, batches: Batches, progress: float) -> dict[str, Tensor]:
        """`progress` is the share of the whole run that has passed. → losses, still on the device."""
        c = self.config
        seed = c.batch.seed * _STEPS_APART + self.step_number
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        batch = batches.make(batches.of_step(self.step_number, c.batch.seed), c.batch.predictor_share, rng)
        rate = self._set_rate(progress)
        self.optimizer.zero_grad(set_to_none=True)
        context = guide_batch(c.guide, batch.text, batch.codes, *self.around_text)
        first, rest = self.logits(batch, noisy=True, context=context)
        losses = {
            "first": F.cross_entropy(first.float(), batch.first),
            "rest": self._rest_loss(rest.float(), batch.frames[:, 1:]),
            "astray": context.astray,
        }
        total = losses["first"] + c.schedule.predictor_weight * losses["rest"] + c.guide.weight * losses["astray"]
        total.backward()
        losses["gradient"] = nn.utils.clip_grad_norm_(self.talker.parameters(), c.schedule.gradient_norm)
        self.optimizer.step()
        self._average()
        self.step_number += 1
        self.since_restart += 1
        return {n: v.detach() for n, v in losses.items()} | {"rate": torch.tensor(rate)}

    def logits(self, batch: Batch, *, noisy: bool, context: FullContext | None = None) -> tuple[Tensor, Tensor]:
        """[predicting, talker vocabulary] and [chosen, codebooks - 1, codebook size]."""
        # Validation runs too rarely to be worth compiling.
        stack, predict = (self.stack, self.predict) if noisy else (self.talker.model, self._plain_predict)
        noise = self.config.noise
        self.dropping = noisy and noise.branches > 0
        codes = batch.codes
        if noisy:
            codes = self._noised(self._noised(codes, noise.frames, whole=True), noise.codes)
        given = batch.frames[:, 1:]
        given = self._noised(given, noise.given) if noisy else given
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            x = self.talker.embed_position(batch.text, codes)
            if noisy and noise.inputs:
                x = F.dropout(x, noise.inputs)
            positions = torch.arange(x.shape[1], device=self.device)[None]  # the same in every row
            hidden = stack(x, positions, context or FullContext()).flatten(0, 1)[batch.predicting]
            start = self.talker.model.codec_embedding(batch.frames[:, 0])
            return self.talker.codec_head(hidden), predict(hidden[batch.chosen], start, given)

    def _rest_loss(self, logits: Tensor, codes: Tensor) -> Tensor:
        """Each code counts less than the one before it, since the last codes change the sound little."""
        each = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none").view(codes.shape)
        weights = self.config.schedule.predictor_fade ** torch.arange(codes.shape[1], device=codes.device)
        return (each * (weights / weights.mean())).mean()

    def _noised(self, codes: Tensor, share: float, *, whole: bool = False) -> Tensor:
        """Replace up to `share` of each row's codes, or whole frames; special ids, which have no other codes beside
        them, stay."""
        if not share:
            return codes
        rows = torch.rand((len(codes), *[1] * (codes.ndim - 1)), device=self.device) * share
        drawn = torch.rand((*codes.shape[:-1], 1) if whole else codes.shape, device=self.device)
        replaced = (drawn < rows) & (codes[..., 1:2] >= 0)
        return torch.where(replaced, torch.randint(self.book, codes.shape, device=self.device), codes)

    def _set_rate(self, progress: float) -> float:
        rate = learning_rate(self.config.schedule, progress, self.since_restart)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    # ------------------------------------------------------------------ averaged weights

    def _average(self) -> None:
        """Young averages follow faster: a fixed decay would drag the random start along."""
        decay = min(self.config.schedule.ema, (1 + self.step_number) / (10 + self.step_number))
        weights = [p.detach() for p in self.talker.parameters()]
        torch._foreach_lerp_(list(self.averaged.values()), weights, 1 - decay)

    @contextmanager
    def averaged_weights(self) -> Iterator[Talker]:
        """The talker with its averaged weights, until the block ends."""
        with swapped(dict(self.talker.named_parameters()), self.averaged):
            yield self.talker

    def validate(self, batches: Batches) -> dict[str, float]:
        """Losses and hit rates of the averaged weights on clean inputs."""
        sums: dict[str, float] = {}
        with self.averaged_weights():
            for step in range(batches.per_epoch):
                batch = batches.make(batches.of_step(step, 0), 0.5, np.random.default_rng(step))
                for name, value in self._figures(batch, batches.stop).items():
                    sums[name] = sums.get(name, 0.0) + value.item() / batches.per_epoch
        return {f"held_out_{name}": round(value, 4) for name, value in sums.items()}

    def _figures(self, batch: Batch, stop: int) -> dict[str, Tensor]:
        first, rest = (t.detach().float() for t in self.logits(batch, noisy=False))
        ends = batch.first == stop
        return {
            "first": F.cross_entropy(first, batch.first),
            "rest": F.cross_entropy(rest.flatten(0, 1), batch.frames[:, 1:].flatten()),
            "stop": F.cross_entropy(first[ends], batch.first[ends]),
            "hits": (first.argmax(-1) == batch.first).float().mean(),
            "rest_hits": (rest.argmax(-1) == batch.frames[:, 1:]).float().mean(),
        }
