"""The codec trainer learns, codec and discriminators alike, and keeps its codes once they are final."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training.clip import FRAME
from training.codec import checkpoint
from training.codec.config import CodecTraining, Shape
from training.codec.data import Crops
from training.codec.losses import SpectralLoss
from training.codec.model import Codec
from training.codec.train import hold_out, listen
from training.codec.train import train as run
from training.codec.trainer import Trainer
from training.curves import Curves
from training.shards import Corpus

from sonant.kernels import reference
from training import settings

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["codec", "codec-tiny"])
def test_the_configs_in_the_repository_are_valid(name: str) -> None:
    config = settings.read(settings.CONFIGS / f"{name}.toml", CodecTraining)
    with torch.device("meta"):
        codec = Codec(config)
    assert codec.decoder.samples_per_frame == codec.encoder.samples_per_frame == FRAME
    assert sum(p.numel() for p in codec.decoder.parameters()) < 12e6
    assert sum(p.numel() for p in codec.encoder.parameters()) < 8e6


def test_a_wrong_key_in_a_config_is_named() -> None:
    with pytest.raises(settings.SettingsError, match="codebook_count"):
        settings.build(Shape, {"codebook_count": 3}, "shape")


def test_a_few_steps_on_one_batch_lower_the_loss(config: CodecTraining, one_batch: Crops) -> None:
    batch = replace(config.batch, long_every=10**6)
    trainer = Trainer(replace(config, batch=batch), CPU)
    trainer.step(one_batch, progress=0.0)
    losses = [trainer.step(one_batch, progress=0.1)["mel"].item() for _ in range(12)]
    assert min(losses[-3:]) < 0.9 * losses[0]


def test_the_adversarial_phase_trains_both_sides(trained: Trainer, crops: Crops) -> None:
    before = [p.clone() for p in trained.discriminators.parameters()]
    losses = trained.step(crops, progress=0.9)
    assert {"judge", "adversarial", "features"} <= losses.keys()
    assert all(v.isfinite() for v in losses.values())
    moved = [not torch.equal(a, b) for a, b in zip(before, trained.discriminators.parameters(), strict=True)]
    assert all(moved)
    assert all(p.requires_grad for p in trained.discriminators.parameters())


def test_a_piece_of_training_leaves_curves_and_samples(
    config: CodecTraining, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.codec.train.LOG_STEPS", 2)
    training, held = hold_out(corpus)
    assert [e.speaker for e in held] == ["anna", "bert"]
    assert not set(held) & set(training.entries)
    trainer = Trainer(config, CPU)
    run(trainer, Crops(training, CPU), Curves(tmp_path, ("mel",)), tmp_path, deadline=float("inf"), most_steps=4)
    assert not (tmp_path / "frozen").exists()
    assert len((tmp_path / "curves.jsonl").read_text().splitlines()) == 2
    figures = listen(trainer, corpus, held, tmp_path / "samples.wav")
    assert np.isfinite(figures["held_out_mel"])
    heard = sum(e.samples for e in held) * 2 + 4 * 8000
    assert (tmp_path / "samples.wav").stat().st_size == 44 + 2 * heard


def test_when_the_codes_are_final_others_get_them(
    config: CodecTraining, corpus: Corpus, crops: Crops, tmp_path: Path
) -> None:
    schedule = replace(config.schedule, frozen_from=0.0, quantize_after=2, total_minutes=1e9)
    trainer = Trainer(replace(config, schedule=schedule), CPU)
    run(trainer, crops, Curves(tmp_path, ("mel",)), tmp_path, deadline=float("inf"), most_steps=1)
    run(trainer, crops, Curves(tmp_path, ("mel",)), tmp_path, deadline=float("inf"), most_steps=5)
    other = Trainer(config, CPU)
    checkpoint.load(other, tmp_path / "frozen")
    assert other.step_number == 1  # the checkpoint is not written again at the end
    clip = torch.from_numpy(corpus.clip(corpus.entries[0])).float()[None] / 32768
    with trainer.averaged_weights() as codec, other.averaged_weights() as early:
        latents, known = codec.encoder(clip), early.encoder(clip)
    torch.testing.assert_close(latents, known, rtol=2e-2, atol=2e-2)  # kept in half precision


def test_a_frozen_codec_keeps_its_codes(trained: Trainer, crops: Crops) -> None:
    samples, _, _ = crops.draw(2, 12 * FRAME, torch.Generator().manual_seed(1))

    def codes() -> torch.Tensor:
        with torch.no_grad():
            return trained.codec.encoder.quantizer.encode(trained.codec.encoder(samples), 3)

    trained.step(crops, progress=0.99)
    before, weight = codes(), trained.codec.decoder.pre_conv.conv.weight.clone()
    for _ in range(3):
        losses = trained.step(crops, progress=0.99)
    assert torch.equal(codes(), before)
    assert not torch.equal(trained.codec.decoder.pre_conv.conv.weight, weight)
    assert "commitment" not in losses


def test_silence_weighs_no_more_than_speech() -> None:
    """A logarithm is steepest near zero: without a floor, pauses would outweigh speech."""
    torch.manual_seed(1)
    speech = 0.06 * torch.randn(1, 24000)
    real = torch.cat([speech, torch.zeros(1, 24000)], 1)
    made = (real + 1e-5 * torch.randn(1, 48000)).requires_grad_()
    made.data[:, :24000] += 0.02 * torch.randn(1, 24000)
    mel, stft = SpectralLoss(made.device)(made, real)
    (mel + stft).backward()
    assert made.grad is not None
    spoken, silent = made.grad.abs().split(24000, 1)
    assert silent[:, 4096:].mean() < 0.1 * spoken.mean()


@pytest.mark.parametrize(("rows", "channels"), [(3, 24), (700, 8)])
def test_the_fused_snake_has_the_slopes_of_the_reference(rows: int, channels: int) -> None:
    pytest.importorskip("triton")
    from training.codec.snake import snake

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    given = [torch.randn(2, rows, channels), torch.randn(channels), torch.randn(channels)]
    slope = torch.randn(2, rows, channels, device=device)
    slopes = []
    for function in (snake, reference.snake_beta):
        leaves = [t.to(device).requires_grad_() for t in given]
        slopes.append(torch.autograd.grad(function(*leaves), leaves, slope))
    for got, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
