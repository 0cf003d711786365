"""With the official codes given, every logit is the official one, in bfloat16 within a stated tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import sonant
from clips import reference_clip
from parity.cases import CASES, REFERENCE_TEXT, Case
from parity.forcing import forced
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.types import SpeechRequest

Golden = Callable[[str], Mapping[str, np.ndarray]]
BF16_RELATIVE_ERROR = 0.03  # ‖ours − official‖ / ‖official‖ over a case's logits; measured: 0.005 to 0.016
WITH_LOGITS = [case for case in CASES if case.name not in ("cv_norep", "cv_strongrep")]


@pytest.mark.parametrize("case", WITH_LOGITS, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits(case: Case, dtype: str, tiny_checkpoints: Mapping[str, Path], golden: Golden) -> None:
    expected = golden(case.checkpoint)
    with sonant.load(tiny_checkpoints[case.checkpoint], device="cpu", dtype=dtype) as engine:
        voice = case.voice
        if case.checkpoint == "base":
            voice = engine.clone(reference_clip(), REFERENCE_TEXT if case.voice == "in_context" else None)
        request = SpeechRequest(text=case.text, voice=voice, **case.options)
        codes = torch.from_numpy(expected[f"{case.name}/codes0"])
        assert isinstance(engine.model, Qwen3TTS)
        prompt, talker, rest = (t.float().numpy() for t in forced(engine.model, request, codes))
    official = expected[f"{case.name}/talker_logits"][:, 0]
    pairs = [(prompt, expected[f"{case.name}/prefill_embeds"][0, 0]), (talker[: len(official)], official)]
    if f"{case.name}/pred_logits" in expected:
        pairs.append((rest[0], expected[f"{case.name}/pred_logits"][:, 0]))
    for ours, theirs in pairs:
        if dtype == "float32":
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
        else:
            assert np.linalg.norm(ours - theirs) / np.linalg.norm(theirs) < BF16_RELATIVE_ERROR
