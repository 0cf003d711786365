"""Higgs Audio V2 as the engine sees it: prompt, prefill, decode step and codec over row state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sonant.kernels.reference import split_kinds
from sonant.models.base import Ints, PackedSize, PrefillItem, PrefillShape, Prompt, seed_words
from sonant.models.higgs_audio_v2.codec import CodecDecoder
from sonant.models.higgs_audio_v2.codec_encoder import CodecEncoder
from sonant.models.higgs_audio_v2.config import CODEBOOKS, HiggsConfig
from sonant.models.higgs_audio_v2.frame import DELAY, KV, FrameDecoder, RowStep
from sonant.models.higgs_audio_v2.knobs import staged_values
from sonant.models.higgs_audio_v2.language_model import LanguageModel
from sonant.models.higgs_audio_v2.packed_prompts import PackedPrompts, PackedShape
from sonant.models.higgs_audio_v2.prompt import FAMILY, PromptBuilder
from sonant.models.higgs_audio_v2.row_state import (
    COUNTED,
    Limits,
    settle,
    staged_fields,
    start_rows,
    state_fields,
    window_places,
)
from sonant.models.higgs_audio_v2.spoken_text import MOST_SPEAKERS
from sonant.models.memory import Memory
from sonant.models.spec import Field, KVGroup, ModelSpec
from sonant.models.weights import weight_bytes
from sonant.types import Samples, SpeechRequest
from sonant.voice import Voice

MAX_POSITIONS = 8192  # of Boson's own largest cache; the published files' numbers belong to their RoPE
_MOST_FRAMES = 2048  # of one utterance, as Boson's script has it
_CONTEXT_SEGMENTS = 2  # of a long text, as Boson's examples have it
_SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Modules:
    language_model: LanguageModel
    decoder: CodecDecoder
    encoder: CodecEncoder  # for cloning only


class HiggsAudioV2:
    def __init__(self, config: HiggsConfig, modules: Modules, builder: PromptBuilder, limits: Limits) -> None:
        self.config, self.modules, self.builder, self.limits = config, modules, builder, limits
        self.device = modules.language_model.audio_lm_head.weight.device
        self.spec = _spec(config, modules, limits)

    # Off the step thread

    def prompt(self, request: SpeechRequest) -> Prompt:
        layout = self.builder.layout(request)
        budget = self.limits.budget.frames(layout.spoken_tokens, self.spec.frame_s)
        max_frames = min(budget, _MOST_FRAMES) if request.max_frames is None else request.max_frames
        staged = staged_values(self.spec.knobs, request.sampling)
        staged |= {"seed": seed_words(request.seed or 0), "frame_limit": max_frames}
        return Prompt(
            length=len(layout.text), keys=layout.keys(), staged=staged, max_frames=max_frames, payload=layout
        )

    @torch.inference_mode()
    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        codes = self.modules.encoder.encode(torch.from_numpy(samples).to(self.device))
        return Voice({"codes": codes.cpu().numpy().astype(np.int32)}, text or None, name, FAMILY)

    # On the step thread

    def bind(self, memory: Memory) -> None:
        self.memory = memory
        settle(memory)
        self.frame_parts = FrameDecoder(self.config, self.modules.language_model, memory).parts()
        self.codebook = torch.arange(CODEBOOKS, device=self.device)
        self.window = window_places(self.limits.sizes.chunks[-1], self.modules.decoder.context_frames, self.codebook)

    def packed_size(self, item: PrefillItem) -> PackedSize:
        return PackedSize(item.end - item.start)

    def pack(self, items: Sequence[PrefillItem], shape: PrefillShape) -> Ints:
        return PackedShape(shape.positions).pack(items, shape.prompts, self.memory.scratch_row)

    @torch.inference_mode()
    def prefill(self, packed: Tensor, shape: PrefillShape) -> None:
        stack, memory = self.modules.language_model.model, self.memory
        prompts = PackedPrompts(packed, PackedShape(shape.positions))
        context = memory.prefill_context(KV, memory.tables[prompts.rows], prompts.at, prompts.real, shape.span_blocks)
        x = stack.embed_position(prompts.text, prompts.codes)
        stack.prefill(x, prompts.at, context, split_kinds(prompts.kinds()))
        start_rows(memory, prompts.ready_rows, prompts.lengths, prompts.opening)

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        return -1  # every utterance is decoded by itself: the codec hears nothing of the voice

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> RowStep:
        return RowStep(rows, span_blocks, variant)

    @torch.inference_mode()
    def codec(self, rows: Tensor, frames: int) -> Tensor:
        decoder, ring = self.modules.decoder, self.memory.rows["delayed"]
        lead, counters = decoder.context_frames, self.memory.columns((*COUNTED, "codec_frame"))
        _, drawn, _, _, due = counters[rows].unbind(1)
        at = (due[:, None, None] + self.window[: frames + 2 * lead]) % ring.shape[1]
        codes = ring[rows[:, None, None], at, self.codebook].clamp(0, self.config.codes - 1)
        samples = decoder(codes, due - lead, (drawn - DELAY).clamp(min=0))
        self.memory.rows["codec_frame"][rows] = due + frames
        return samples.float()

    def codec_floor_bytes(self, rows: int, frames: int) -> int:
        """Weights and the sound; the window of codes is next to nothing."""
        sound = frames * self.spec.samples_per_frame * _SAMPLE_BYTES
        return weight_bytes(self.modules.decoder.acoustic_decoder) + rows * sound


def _spec(config: HiggsConfig, modules: Modules, limits: Limits) -> ModelSpec:
    llama, decoder, model = config.llama, modules.decoder, modules.language_model
    dtype = model.audio_lm_head.weight.dtype
    return ModelSpec(
        family=FAMILY,
        sample_rate=limits.sample_rate,
        clip_sample_rate=limits.sample_rate,
        samples_per_frame=decoder.samples_per_frame,
        frame=Field("codes", (CODEBOOKS,), torch.int32),
        kv=(KVGroup(KV, llama.num_hidden_layers, llama.num_key_value_heads, llama.head_dim, dtype),),
        staged=staged_fields(),
        state=state_fields(limits, decoder.context_frames),
        max_positions=MAX_POSITIONS,
        frame_weight_bytes=weight_bytes(*model.step_modules(), decoder.acoustic_decoder),
        delay_steps=DELAY,
        codec_lookahead=decoder.context_frames,
        knobs=config.knobs,
        languages=PromptBuilder.languages,
        clones=True,
        speaks_without_voice=True,
        instructs=True,
        most_speakers=MOST_SPEAKERS,
        context_segments=_CONTEXT_SEGMENTS,
    )
