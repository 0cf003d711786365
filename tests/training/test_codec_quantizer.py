"""The quantiser learns, and codes a clip as the served encoder and decoder do."""

from __future__ import annotations

import pytest
import torch
from training.clip import FRAME
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.model import decode_latents
from training.codec.trainer import Trainer

CPU = torch.device("cpu")


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
