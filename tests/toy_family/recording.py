"""The toy, keeping what it was asked to lay out."""

from __future__ import annotations

from typing import Any

import torch

from sonant.config import EngineConfig
from sonant.models.base import Prompt
from sonant.types import SpeechRequest
from toy_family.model import ToyModel


class RecordingToy(ToyModel):
    def __init__(self, config: EngineConfig, device: torch.device, **kind: Any) -> None:
        super().__init__(config, device, **kind)
        self.asked: list[SpeechRequest] = []

    def prompt(self, request: SpeechRequest) -> Prompt:
        self.asked.append(request)
        return super().prompt(request)
