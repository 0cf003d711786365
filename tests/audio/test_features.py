"""Log-mels equal those of the official speaker path, and their filterbank is Slaney's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from clips import reference_clip
from sonant.audio.features import MelSpec, log_mel, slaney_filterbank

SPEC = MelSpec()


def test_the_mel_of_the_reference_clip_is_the_official_one(
    golden: Callable[[str], Mapping[str, np.ndarray]],
) -> None:
    """Within 1e-4; where the clip is nearly silent, within float32's precision: a Fourier transform's rounding errors
    scale with the loudest component and differ between CPUs, and near the floor the official file is itself 4e-3 off
    float64."""
    mel = log_mel(torch.from_numpy(reference_clip()[0]), SPEC)
    official = golden("base")["prompt_xvec0/spk_mel"].reshape(-1, SPEC.mel_bins)
    np.testing.assert_allclose(mel.exp(), np.exp(official), rtol=1e-4, atol=1e-7)


def test_a_batch_gives_what_its_clips_give_alone() -> None:
    clips = torch.randn(2, 3, 5000, generator=torch.Generator().manual_seed(0))
    mel = log_mel(clips, SPEC)
    assert mel.shape == (2, 3, 5000 // SPEC.hop_samples, SPEC.mel_bins)
    torch.testing.assert_close(mel[1, 2], log_mel(clips[1, 2], SPEC))


def test_silence_rests_on_the_floor_and_is_finite() -> None:
    mel = log_mel(torch.zeros(4096), SPEC)
    torch.testing.assert_close(mel, torch.full_like(mel, SPEC.mel_floor).log())


# Filter i is centred on (i + 1) / 129 of the 51.14 mels up to 12 kHz; 1 kHz is 15 mels.
@pytest.mark.parametrize(("tone_hz", "mel_bin"), [(440, 16), (1000, 37), (4000, 88), (9000, 117)])
def test_a_tone_is_loudest_in_the_filter_around_it(tone_hz: int, mel_bin: int) -> None:
    t = torch.arange(24_000) / SPEC.sample_rate
    mel = log_mel(0.5 * torch.sin(2 * torch.pi * tone_hz * t), SPEC)
    assert mel[40].argmax() == mel_bin


def test_filters_have_equal_areas() -> None:
    bin_hz = SPEC.sample_rate / SPEC.fft_samples
    wide = slaney_filterbank(SPEC)[64:]  # narrower ones hold too few bins for their sum to be their area
    torch.testing.assert_close(wide.sum(1) * bin_hz, torch.ones(64), atol=0.05, rtol=0)


def test_a_filterbank_first_made_under_inference_mode_can_still_be_trained_through() -> None:
    slaney_filterbank.cache_clear()
    samples = torch.from_numpy(reference_clip(0.6)[0])
    with torch.inference_mode():
        log_mel(samples, SPEC)
    samples.requires_grad_()
    log_mel(samples, SPEC).sum().backward()
    assert samples.grad is not None
    assert samples.grad.isfinite().all()


def test_the_cache_of_filterbanks_is_bounded() -> None:
    for rate in range(16_000, 16_020):
        slaney_filterbank(MelSpec(sample_rate=rate))
    info = slaney_filterbank.cache_info()
    assert info.maxsize is not None
    assert info.currsize <= info.maxsize <= 16
