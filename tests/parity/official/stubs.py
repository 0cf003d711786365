"""Lets the official package be imported without packages that its 12 Hz path never calls."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types

UNUSED = ("sox", "onnxruntime", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")


def install() -> list[str]:
    """Put empty modules in the place of missing packages → their names. Call before `import qwen_tts`."""
    # transformers looks for optional packages when it is imported, and must not find our empty ones.
    import transformers.audio_utils
    import transformers.processing_utils  # noqa: F401

    missing = {root for root in {name.split(".")[0] for name in UNUSED} if importlib.util.find_spec(root) is None}
    for name in UNUSED:
        if name.split(".")[0] in missing:
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
    return sorted(missing)
