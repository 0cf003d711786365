"""The codec trainer learns, resumes where it stopped, and exports what sonant's own modules play back."""

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
from training.codec.export import export
from training.codec.losses import SpectralLoss
from training.codec.model import Codec, decode_latents
from training.codec.train import hold_out, listen
from training.codec.train import train as run
from training.codec.trainer import Trainer
from training.curves import Curves
from training.shards import Corpus

from sonant.kernels import reference
from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.weights import load_into, open_weights
from training import encode, settings, state

CPU = torch.device("cpu")


def snapshot(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in checkpoint._whole(trainer).items()}


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


def test_quantising_is_what_the_served_encoder_does(trained: Trainer, crops: Crops) -> None:
    samples, _, _ = crops.draw(2, 12 * FRAME, torch.Generator().manual_seed(1))
    codec = trained.codec
    with torch.no_grad():
        latents = codec.encoder(samples)
        depth = torch.full((2,), codec.config.shape.codebooks)
        quantized = codec.quantizer(latents, depth, update=False)
        served = codec.encoder.quantizer.encode(latents, codec.config.shape.codebooks)
    torch.testing.assert_close(quantized.codes, served)


def test_a_shallow_row_uses_its_first_codebooks_only(trained: Trainer, crops: Crops) -> None:
    samples, _, _ = crops.draw(1, 12 * FRAME, torch.Generator().manual_seed(1))
    codec = trained.codec
    with torch.no_grad():
        latents = codec.encoder(samples)
        one, two = (codec.quantizer(latents, torch.tensor([n]), update=False).latents for n in (1, 2))
        books = codec.decoder.quantizer.rvq_first
        codec.share_codebooks()
        codes = codec.encoder.quantizer.encode(latents, 3)[..., 0]
        alone = torch.nn.functional.embedding(codes, books.projected()[0]).mT
    torch.testing.assert_close(one - codec.quantizer.chains[1].project(torch.zeros(1, 12, 16)), alone)
    assert (one - two).abs().max() > 1e-3


def test_the_gradient_passes_straight_through_to_the_encoder(trained: Trainer) -> None:
    latents = torch.randn(1, 32, 5, requires_grad=True)
    quantized = trained.codec.quantizer(latents, torch.tensor([3]), update=False)
    quantized.latents.sum().backward()
    assert latents.grad is not None and latents.grad.abs().min() > 0


def test_a_code_that_nobody_uses_starts_again_at_a_latent(trained: Trainer) -> None:
    codebook = trained.codec.quantizer.chains[1].codebooks()[0]
    codebook.embed_sum[3] = 1e6 * codebook.cluster_usage[3]
    codebook.cluster_usage[3] *= 1e-6
    codebook.embed_sum[3] *= 1e-6
    latents = torch.randn(2, 32, 20)
    trained.codec.quantizer(latents, torch.tensor([3, 3]), update=True, restart=True)
    assert codebook.vectors()[3].abs().max() < 100


def test_decoding_latents_is_the_served_decoding(trained: Trainer) -> None:
    decoder = trained.codec.decoder
    trained.codec.share_codebooks()
    codes = torch.randint(16, (2, 9, 3))
    with torch.no_grad():
        offsets = torch.arange(3) * 16
        latents = torch.nn.functional.embedding(codes + offsets, decoder.quantizer.table()).sum(2).mT
        made = decode_latents(decoder, latents).clamp(-1, 1)
        served = decoder(codes, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(made, served)


def test_layers_start_with_values_of_unit_spread(config: CodecTraining, crops: Crops) -> None:
    codec = Trainer(config, CPU).codec
    samples, _, _ = crops.draw(4, 12 * FRAME, torch.Generator().manual_seed(1))
    codec.fit_scales(samples)
    with torch.no_grad():
        latents = codec.encoder(samples)
        made = codec.decode(codec.quantizer.bypass(latents))
    assert latents.std(dim=(0, 2)).mean() > 0.5  # they differ from frame to frame, not only from channel to channel
    assert made.std() == pytest.approx(0.1, rel=0.05)


def test_a_few_steps_on_one_batch_lower_the_loss(config: CodecTraining, crops: Crops) -> None:
    class Same(Crops):
        def __init__(self) -> None:
            self.labels = crops.labels

        def draw(
            self, rows: int, samples: int, generator: torch.Generator
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
            return crops.draw(rows, samples, torch.Generator().manual_seed(7))

    batch = replace(config.batch, long_every=10**6)
    trainer = Trainer(replace(config, batch=batch), CPU)
    trainer.step(Same(), progress=0.0)
    losses = [trainer.step(Same(), progress=0.1)["mel"].item() for _ in range(12)]
    assert min(losses[-3:]) < 0.9 * losses[0]


def test_the_adversarial_phase_trains_both_sides(trained: Trainer, crops: Crops) -> None:
    before = [p.clone() for p in trained.discriminators.parameters()]
    losses = trained.step(crops, progress=0.9)
    assert {"judge", "adversarial", "features"} <= losses.keys()
    assert all(v.isfinite() for v in losses.values())
    moved = [not torch.equal(a, b) for a, b in zip(before, trained.discriminators.parameters(), strict=True)]
    assert all(moved)
    assert all(p.requires_grad for p in trained.discriminators.parameters())


def test_a_resumed_run_is_the_run_that_was_not_stopped(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    checkpoint.save(trained, tmp_path, compact=False)
    resumed = Trainer(config, CPU)
    checkpoint.load(resumed, tmp_path)
    for trainer in (trained, resumed):
        for progress in (0.1, 0.9):
            trainer.step(crops, progress)
    ours, theirs = snapshot(trained), snapshot(resumed)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=0, rtol=0, msg=name)


def test_a_compact_checkpoint_carries_the_averaged_weights(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    checkpoint.save(trained, tmp_path, compact=True)
    resumed = Trainer(config, CPU)
    checkpoint.load(resumed, tmp_path)
    assert (resumed.step_number, resumed.since_restart) == (4, 0)
    for name, value in resumed.trained.items():
        torch.testing.assert_close(value, trained.averaged[name], atol=1e-3, rtol=1e-3)
    resumed.step(crops, progress=0.9)


def test_a_codec_of_fewer_codebooks_goes_on_from_one_of_more(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    checkpoint.save(trained, tmp_path, compact=True)
    fewer = Trainer(replace(config, shape=replace(config.shape, codebooks=config.shape.codebooks - 1)), CPU)
    checkpoint.load(fewer, tmp_path)
    samples, _, _ = crops.draw(2, 12 * FRAME, torch.Generator().manual_seed(1))
    codes = []
    for trainer in (trained, fewer):
        with trainer.averaged_weights() as codec:
            depth = torch.full((2,), trainer.config.shape.codebooks)
            codes.append(codec.quantizer(codec.encoder(samples), depth, update=False).codes)
    assert codes[1].shape[-1] == codes[0].shape[-1] - 1
    assert (codes[1] == codes[0][..., :-1]).float().mean() > 0.95  # half precision may move a code
    fewer.step(crops, progress=0.1)


def test_shards_keep_below_what_can_be_carried(
    trained: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SHARD_BYTES", 1 << 20)
    checkpoint.save(trained, tmp_path, compact=False)
    sizes = [p.stat().st_size for p in tmp_path.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < (1 << 20) + 100_000


def test_the_export_plays_what_the_trainer_heard(trained: Trainer, crops: Crops, tmp_path: Path) -> None:
    samples, _, _ = crops.draw(1, 14 * FRAME, torch.Generator().manual_seed(2))
    with trained.averaged_weights() as codec, torch.no_grad():
        wanted = codec.reconstruct(samples)[0]
        export(codec, tmp_path)
    encoder = encode.load_encoder(tmp_path, CPU)
    decoder = CodecDecoder(CodecConfig.read(tmp_path).decoder)
    load_into(decoder, open_weights(tmp_path), prefix="decoder.", unused=("encoder.",))
    decoder.prepare()
    with torch.no_grad():
        made = decoder(encoder.encode(samples[0])[None], torch.zeros(1, dtype=torch.long))[0]
    torch.testing.assert_close(made, wanted, atol=1e-5, rtol=1e-4)


def test_codes_of_a_batch_are_the_codes_of_each_clip(trained: Trainer, corpus: Corpus, tmp_path: Path) -> None:
    with trained.averaged_weights() as codec:
        export(codec, tmp_path)
    encoder = encode.load_encoder(tmp_path, CPU)
    clips = [torch.from_numpy(corpus.clip(e)) for e in corpus.entries[:4]]
    together = encode.encode_batch(encoder, clips)
    for clip, codes in zip(clips, together, strict=True):
        torch.testing.assert_close(codes.long(), encoder.encode(clip.float() / 32768))


def test_codes_are_read_as_they_were_written(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "SHARD_BYTES", 1000)
    rng = np.random.default_rng(1)
    codes = [rng.integers(0, 1024, (e.samples // FRAME, 3)) for e in corpus.entries]
    encode.write(tmp_path, corpus.entries, codes)
    assert len(list(tmp_path.iterdir())) > 1
    known = {(e.speaker, e.text): c for e, c in zip(corpus.entries, codes, strict=True)}
    found = list(encode.read(tmp_path))
    assert len(found) == len(codes)
    for line, piece in found:
        np.testing.assert_array_equal(piece, known[line["speaker"], line["text"]])


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
    assert other.step_number == 1  # not written again at the end
    clip = torch.from_numpy(corpus.clip(corpus.entries[0])).float()[None] / 32768
    with trainer.averaged_weights() as codec, other.averaged_weights() as early:
        latents, known = codec.encoder(clip), early.encoder(clip)
    torch.testing.assert_close(latents, known, rtol=2e-2, atol=2e-2)  # kept in half precision


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
    """A logarithm is steepest near nothing: without a floor, pauses would drown what is said."""
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
