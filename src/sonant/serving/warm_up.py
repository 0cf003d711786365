"""Does what is slow the first time before anybody waits for it: libraries, encoders, one utterance.

Kernels are compiled and graphs captured when the engine is loaded; this is the rest of the way to a listener.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from sonant.types import Samples
from sonant.voice import Voice

if TYPE_CHECKING:
    from sonant.engine.engine import Engine

logger = logging.getLogger(__name__)

_TEXT = "This sentence is spoken once, before the first listener comes."
_FRAMES = 24  # enough for chunks of more than one size
_CLIP_S = 2.0


def warm_up(engine: Engine) -> None:
    """Warm up an engine."""
    voice = _voice(engine) if engine.spec.clones else None
    with engine.stream(_TEXT[: engine.config.max_text_chars], voice=voice, seed=0, max_frames=_FRAMES) as stream:
        for _ in stream:
            pass
    engine.start_times.took("warm-up")
    logger.info("the engine is ready after %s", engine.start_times)


def warm_encoders(sample_rate: int) -> None:
    """Warm up a front end's encoders for this sample rate."""
    from sonant.audio.resample import StreamResampler
    from sonant.audio.speed import SpeedChanger
    from sonant.serving.encode import FORMATS, carried_rate_hz, open_encoder

    samples: Samples = np.zeros(sample_rate // 10, np.float32)
    for form in FORMATS:
        for streaming in (True, False):
            encoder = open_encoder(form, carried_rate_hz(form, sample_rate), streaming=streaming)
            encoder.push(samples)
            encoder.finish()
    StreamResampler(sample_rate, 2 * sample_rate).push(samples)
    SpeedChanger(sample_rate, 1.25).push(samples)


def _voice(engine: Engine) -> Voice:
    """A voice from noise that swells and fades: it is nobody's, but it takes the path of every clip."""
    clip_s = min(max(_CLIP_S, engine.config.clip_min_s), engine.config.clip_max_s)
    count = round(clip_s * engine.sample_rate)
    noise = np.random.default_rng(0).standard_normal(count)
    swell: Samples = (0.1 * noise * np.sin(np.arange(count) / engine.sample_rate * 6) ** 2).astype(np.float32)
    return engine.clone((swell, engine.sample_rate), "Some words that were never said.", "warm-up")
