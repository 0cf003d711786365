"""Records what passes between the official package's modules while it speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn


class Tap:
    """Forward hooks on the talker, the predictor and the speaker encoder of an official model."""

    def __init__(self, model: Any) -> None:
        self.recorded: dict[str, list[np.ndarray]] = {}
        talker = model.talker
        self._watch(talker.model, self._talker_step)
        self._watch(talker.codec_head, lambda inputs, output: self._add("talker_logits", output[:, -1]))
        for head in talker.code_predictor.lm_head:
            self._watch(head, lambda inputs, output: self._add("pred_logits", output[:, -1]))
        if model.speaker_encoder is not None:
            self._watch(model.speaker_encoder, lambda inputs, output: self._add("spk_mel", inputs[0]))

    def take(self) -> dict[str, np.ndarray]:
        """All that was recorded since the last call, each name's recordings stacked."""
        taken = {name: np.stack(values) for name, values in self.recorded.items()}
        self.recorded = {}
        return taken

    def _watch(self, module: nn.Module, record: Callable[[dict[Any, Tensor], Any], None]) -> None:
        def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Any) -> None:
            record({**dict(enumerate(args)), **kwargs}, output)

        module.register_forward_hook(hook, with_kwargs=True)

    def _talker_step(self, inputs: dict[Any, Tensor], output: Any) -> None:
        if inputs["inputs_embeds"].shape[1] > 1:
            self._add("prefill_embeds", inputs["inputs_embeds"])
        self._add("talker_hidden", output.last_hidden_state[:, -1])

    def _add(self, name: str, value: Tensor) -> None:
        self.recorded.setdefault(name, []).append(value.detach().float().cpu().numpy().copy())
