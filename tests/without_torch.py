"""Run by test_without_torch.py in a process without torch: imports what must not need torch, and lays out prompts."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from prompt_cases import flat, open_prompter, requests
from sonant.models import registry

MODULES = (
    *(f"engine.{name}" for name in ("stream", "long_text", "text_feed", "context", "prompt_thread", "request")),
    *("engine.blocks", "voice", "voice_cache", "config", "types", "sampling", "strict", "errors", "bundled"),
    *(f"audio.{name}" for name in ("clip", "resample", "speed", "join", "pcm")),
    *(f"text.{name}" for name in ("lexicon", "normalize", "sentences", "splitter", "turns")),
    *(f"models.{name}" for name in ("prompt", "prompt_check", "speech_spec", "status", "published", "description")),
)
OF_A_FAMILY = ("config", "describe", "knobs", "layout", "prompt", "prompter", "tokenizer")


def main(named: str, out: str) -> None:
    folders = json.loads(named)
    for module in MODULES:
        import_module(f"sonant.{module}")
    for name in registry.family_names():
        for part in OF_A_FAMILY:
            registry.family_module(name, part)
    paths = {name: Path(folder) for name, folder in folders.items()}
    arrays = {}
    for checkpoint in (*paths, "toy"):
        prompter = open_prompter(checkpoint, paths)
        for case, request in requests(prompter).items():
            prompt = prompter.prompt(request)
            prompter.check(prompt)
            arrays |= {f"{checkpoint}/{case}/{name}": value for name, value in flat(prompt).items()}
        if checkpoint in paths:
            assert registry.describe(paths[checkpoint]).sample_rate == prompter.spec.sample_rate
    np.savez(out, **arrays)
    assert not any(name.startswith("torch.") for name in sys.modules)
