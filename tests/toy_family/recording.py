"""Toys that let a test see requests, and change them, before they are laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sonant.config import EngineConfig
from sonant.models.prompt import Prompt
from sonant.types import SpeechRequest
from toy_family.model import ToyModel
from toy_family.prompter import ToyPrompter


class WatchedPrompter(ToyPrompter):
    before: Callable[[SpeechRequest], SpeechRequest] = staticmethod(lambda request: request)

    def prompt(self, request: SpeechRequest) -> Prompt:
        return super().prompt(self.before(request))


class WatchedToy(ToyModel):
    """Calls `before` with every request, and lays out the one that it returns."""

    prompter: WatchedPrompter
    prompter_type = WatchedPrompter

    def __init__(self, config: EngineConfig, device: torch.device, **kind: Any) -> None:
        super().__init__(config, device, **kind)
        self.prompter.before = self.before

    def before(self, request: SpeechRequest) -> SpeechRequest:
        return request


class RecordingToy(WatchedToy):
    """Keeps every request that it lays out."""

    def __init__(self, config: EngineConfig, device: torch.device, **kind: Any) -> None:
        super().__init__(config, device, **kind)
        self.asked: list[SpeechRequest] = []

    def before(self, request: SpeechRequest) -> SpeechRequest:
        self.asked.append(request)
        return request
