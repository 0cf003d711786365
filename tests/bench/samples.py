"""Samples and levels made up for tests of what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonant.bench.client.load import Load
from sonant.bench.client.load_level import ClientError, LoadLevel
from sonant.bench.client.sample import Failure, Sample
from sonant.bench.report.results import Run

ON_TIME = ClientError(0.0001, 0.0005, 0.001, 0.0)
TARGET = {
    "base_url": "http://here", "model": "m", "voice": None, "response_format": "pcm", "stream": True, "sse": False,
    "extra_body": {}, "connections": "a new one for each request",
}  # fmt: skip


def sample(
    prompt: str = "p",
    *,
    ttfp_s: float = 0.1,
    gap_s: float = 0.0,
    audio_s: float = 2.0,
    at_s: float = 0.0,
    slow: float = 1,
) -> Sample:
    """Two chunks: the second comes `gap_s` after the first has been played."""
    half = audio_s / 2
    second_s = slow * (ttfp_s + 0.3 * audio_s) if not gap_s else slow * ttfp_s + half + gap_s
    arrivals = (slow * ttfp_s, second_s)
    return Sample(
        prompt, at_s, end_s=second_s, arrivals_s=arrivals, durations_s=(half, half), audio_s=audio_s, status=200
    )


def failed(failure: Failure, status: int | None = None) -> Sample:
    return Sample("p", 0.0, end_s=0.01, failure=failure, status=status, detail="as planned")


def level(
    samples: Sequence[Sample], concurrency: int = 4, wall_s: float = 10.0, client: ClientError = ON_TIME
) -> LoadLevel:
    return LoadLevel(Load(max(1, len(samples)), concurrency=concurrency), wall_s, list(samples), client)


def noisy_run(seed: int, *, slow: float = 1.0, requests: int = 128, noise: float = 0.05, prompts: int = 30) -> Run:
    """A run as from a server whose requests take `slow` times as long, give or take the noise."""
    random = np.random.default_rng(seed)
    samples = [
        sample(
            f"p{i % prompts}",
            audio_s=1 + i % prompts,
            at_s=float(i),
            slow=slow * float(np.exp(noise * random.normal())),
        )
        for i in range(requests)
    ]
    return Run(TARGET, {}, [level(samples)], {}, 2, "2026-01-01T00:00:00+00:00")
