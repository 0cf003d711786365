"""Trains the split residual quantiser that sonant's encoder and decoder only read.

One semantic codebook and a residual chain of the others look at the same latents; their projected sums add up. The
codebooks are the encoder's own buffers (`embed_sum` and `cluster_usage` are running sums, as published), the
projections are the encoder's `input_proj` and the decoder's `output_proj`: nothing here outlives training.
The semantic entries are given (sounds.py), and the encoder learns to name them. The chain's entries follow the
latents by running means; latents follow entries by the commitment loss; gradients pass straight through. A code
that nobody uses is restarted at a latent of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.models.qwen3_tts.codec import ResidualQuantizer as DecodingChain
from sonant.models.qwen3_tts.codec import SplitQuantizer as DecodingQuantizer
from sonant.models.qwen3_tts.codec_encoder import Codebook
from sonant.models.qwen3_tts.codec_encoder import ResidualQuantizer as EncodingChain
from sonant.models.qwen3_tts.codec_encoder import SplitQuantizer as EncodingQuantizer
from training.codec.config import Quantizing
from training.codec.kmeans import nearest, settled

_KMEANS_ROUNDS = 8


@dataclass(frozen=True)
class Quantized:
    latents: Tensor  # [B, dim, frames]: what the decoder gets
    codes: Tensor  # [B, frames, codebooks]
    naming: Tensor  # scalar: how unsure the encoder is of the first codes that were given
    commitment: Tensor  # scalar


class SplitTrainer(nn.Module):
    def __init__(self, encoding: EncodingQuantizer, decoding: DecodingQuantizer, options: Quantizing) -> None:
        super().__init__()
        # Held without registering: these belong to the encoder and the decoder.
        self.chains = (
            _Chain(encoding.semantic_residual_vector_quantizer, decoding.rvq_first, options),
            _Chain(encoding.acoustic_residual_vector_quantizer, decoding.rvq_rest, options),
        )

    def forward(
        self,
        latents: Tensor,
        depth: Tensor,
        told: Tensor | None = None,
        *,
        update: bool,
        restart: Tensor | bool = False,
    ) -> Quantized:
        """latents [B, H, F] float32; depth [B]: how many codebooks each row may use, at least the semantic one; told
        [B, F]: the first codes, -1 where the encoder's own are used."""
        semantic, acoustic = self.chains
        first, naming = semantic.name(latents, told)
        entries, rest, commitment = acoustic.quantize(latents, depth - 1, update=update, restart=restart)
        return Quantized(
            semantic.look_up(first[..., None]) + acoustic.project(entries),
            torch.cat([first[..., None], rest], dim=-1),
            naming,
            commitment,
        )

    def look_up(self, codes: Tensor) -> Tensor:
        """Codes [B, F, codebooks] → the latents that the decoder gets for them, [B, dim, F]."""
        semantic, acoustic = self.chains
        return semantic.look_up(codes[..., :1]) + acoustic.look_up(codes[..., 1:])

    def bypass(self, latents: Tensor) -> Tensor:
        """The same path without rounding, for the first steps, when there is nothing worth rounding to."""
        parts = [chain.project(chain.encoding.input_proj(latents).mT) for chain in self.chains]
        return parts[0] + parts[1]

    @torch.no_grad()
    def initialize(self, latents: Tensor, first: Tensor, generator: torch.Generator) -> None:
        """`first`: the entries of the first codebook. The others by k-means of latents [B, H, F], one after another."""
        semantic, acoustic = self.chains
        (codebook,) = semantic.codebooks()
        codebook.cluster_usage.fill_(1.0)
        codebook.embed_sum.copy_(first)
        acoustic.initialize(latents, generator)


class _Chain:
    def __init__(self, encoding: EncodingChain, decoding: DecodingChain, options: Quantizing) -> None:
        self.encoding, self.decoding, self.options = encoding, decoding, options

    def codebooks(self) -> list[Codebook]:
        return [layer.codebook for layer in self.encoding.layers]  # type: ignore[misc]

    def project(self, entries: Tensor) -> Tensor:
        return self.decoding.output_proj(entries.mT)

    def look_up(self, codes: Tensor) -> Tensor:
        books = zip(codes.unbind(-1), self.codebooks(), strict=True)
        return self.project(torch.stack([F.embedding(each, book.vectors()) for each, book in books]).sum(0))

    def name(self, latents: Tensor, told: Tensor | None) -> tuple[Tensor, Tensor]:
        """→ codes [B, F] of a single codebook, as told or else the nearest, and how unsure those told are."""
        target = self.encoding.input_proj(latents).mT
        (codebook,) = self.codebooks()
        closeness = 2 * target @ codebook.vectors().T - codebook.vectors().square().sum(1)
        codes = closeness.argmax(-1)
        if told is None:
            return codes, closeness.new_zeros(())
        unsure = F.cross_entropy(closeness.flatten(0, 1), told.flatten(), ignore_index=-1, reduction="sum")
        return torch.where(told >= 0, told, codes), unsure / (told >= 0).sum().clamp(min=1)

    def quantize(
        self, latents: Tensor, depth: Tensor, *, update: bool, restart: Tensor | bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """→ the sum of the first `depth` entries, all codes, the commitment loss of the entries that were used."""
        target = self.encoding.input_proj(latents).mT
        residual = target
        total = torch.zeros_like(target)
        codes, losses = [], []
        for level, codebook in enumerate(self.codebooks()):
            flat = residual.detach().flatten(0, 1)
            vectors = codebook.vectors()
            closest = nearest(flat, vectors)
            chosen = F.embedding(closest, vectors).view_as(residual)
            used = (depth > level)[:, None, None]
            losses.append(((residual - chosen).square() * used).mean())
            total = total + chosen * used
            residual = residual - chosen
            codes.append(closest.view(residual.shape[:2]))
            if update:
                self._follow(codebook, flat, closest, restart)
        straight = target + (total - target).detach()
        return straight, torch.stack(codes, -1), torch.stack(losses).mean()

    @torch.no_grad()
    def _follow(self, codebook: Codebook, flat: Tensor, closest: Tensor, restart: Tensor | bool) -> None:
        counts = torch.zeros_like(codebook.cluster_usage).index_add_(0, closest, flat.new_ones(len(flat)))
        sums = torch.zeros_like(codebook.embed_sum).index_add_(0, closest, flat)
        codebook.cluster_usage.lerp_(counts, 1 - self.options.decay)
        codebook.embed_sum.lerp_(sums, 1 - self.options.decay)
        if restart is not False:
            share = len(flat) / len(counts)
            idle = (codebook.cluster_usage < self.options.restart_below * share) & restart
            drawn = flat[torch.randint(len(flat), counts.shape, device=flat.device)]
            codebook.embed_sum.copy_(torch.where(idle[:, None], drawn * share, codebook.embed_sum))
            codebook.cluster_usage.masked_fill_(idle, share)

    def initialize(self, latents: Tensor, generator: torch.Generator) -> None:
        residual = self.encoding.input_proj(latents).mT.flatten(0, 1)
        for codebook in self.codebooks():
            size = len(codebook.cluster_usage)
            picks = torch.randint(len(residual), (size,), generator=generator, device=residual.device)
            vectors = settled(residual, residual[picks], _KMEANS_ROUNDS)
            codebook.cluster_usage.fill_(1.0)
            codebook.embed_sum.copy_(vectors)
            residual = residual - F.embedding(nearest(residual, vectors), vectors)
