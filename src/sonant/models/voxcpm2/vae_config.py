"""config.json's `audio_vae_config`: the codec between latents and sound, AudioVAE V2.

It encodes at one sample rate and decodes at another. Published files omit what the official class has defaults for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Self

from sonant.errors import CheckpointError
from sonant.models.published import Published, Raw, Rule, agree, at_least_one, only


def _rates(given: Any, _: Raw) -> bool:
    return len(given) > 0 and all(rate >= 1 for rate in given)


def _halves_with_every_rate(given: Any, raw: Raw) -> bool:
    rates = raw.get("decoder_rates") or VAEConfig.decoder_rates
    return given > 0 and given % (1 << len(rates)) == 0


def _ascending(given: Any, _: Raw) -> bool:
    return list(given) == sorted(given)


@dataclass(frozen=True)
class VAEConfig(Published):
    """The encoder's channels double with every rate and the decoder's halve; the defaults are the official ones."""

    rules = (
        only("depthwise", True),
        only("use_noise_block", False),
        only("cond_out_layer", False),
        # The two differ only in how training initialises them; the others condition in other ways.
        Rule("cond_type", "'scale_bias'", lambda given, _: given in ("scale_bias", "scale_bias_init")),
        at_least_one("encoder_dim"),
        at_least_one("latent_dim"),
        at_least_one("sample_rate"),
        at_least_one("out_sample_rate"),
        Rule("encoder_rates", "whole numbers from 1 on", _rates),
        Rule("decoder_rates", "whole numbers from 1 on", _rates),
        Rule("decoder_dim", "what can be halved for each of decoder_rates", _halves_with_every_rate),
        Rule("sr_bin_boundaries", "ascending numbers", _ascending),
    )

    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    sr_bin_boundaries: tuple[int, ...] = (20_000, 30_000, 40_000)
    sample_rate: int = 16_000  # of clips to be encoded
    out_sample_rate: int = 48_000

    @classmethod
    def from_dict(cls, raw: Raw, where: str) -> Self:
        # In the official class null is not the default of these two: it means no conditioning, and latents as wide as
        # the encoder.
        for key in ("sr_bin_boundaries", "latent_dim"):
            if key in raw and raw[key] is None:
                raise CheckpointError(f"{where}: {key} is null; Sonant needs it, or leave it out for the default")
        config = super().from_dict(raw, where)
        heard = config.sample_rate / config.clip_samples_per_latent
        spoken = config.out_sample_rate / config.samples_per_latent
        agree(where, ("sample_rate / encoder_rates", heard, "out_sample_rate / decoder_rates", spoken))
        return config

    @property
    def samples_per_latent(self) -> int:
        return math.prod(self.decoder_rates)

    @property
    def clip_samples_per_latent(self) -> int:
        return math.prod(self.encoder_rates)

    @property
    def rate_bin(self) -> int:
        """Which row of the decoder's conditions is for its output rate; a boundary belongs to the range below it."""
        return bisect_left(self.sr_bin_boundaries, self.out_sample_rate)
