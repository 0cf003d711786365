"""Higgs Audio V2 as the engine sees it: prefill, decode step and codec over row state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sonant.config import FrameSizes
from sonant.kernels.reference import split_kinds
from sonant.models.base import PackedSize, PrefillItem, PrefillShape
from sonant.models.higgs_audio_v2.codec import CodecDecoder
from sonant.models.higgs_audio_v2.codec_encoder import CodecEncoder
from sonant.models.higgs_audio_v2.config import CODEBOOKS, DELAY
from sonant.models.higgs_audio_v2.frame import KV, FrameDecoder, RowStep
from sonant.models.higgs_audio_v2.language_model import LanguageModel
from sonant.models.higgs_audio_v2.packed_prompts import PackedPrompts, PackedShape
from sonant.models.higgs_audio_v2.prompt import FAMILY
from sonant.models.higgs_audio_v2.prompter import HiggsPrompter
from sonant.models.higgs_audio_v2.row_state import COUNTED, settle, start_rows, state_fields, window_places
from sonant.models.higgs_audio_v2.weight_blocks import model_weights
from sonant.models.memory import Memory
from sonant.models.prompt import Ints, Prompt
from sonant.models.spec import KVGroup, ModelSpec
from sonant.models.weight_blocks import ModelWeights
from sonant.models.weights import weight_bytes
from sonant.types import Samples
from sonant.voice import Voice

_SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Modules:
    language_model: LanguageModel
    decoder: CodecDecoder
    encoder: CodecEncoder  # for cloning only


class HiggsAudioV2:
    def __init__(self, prompter: HiggsPrompter, modules: Modules, sizes: FrameSizes) -> None:
        self.prompter, self.config, self.modules, self.sizes = prompter, prompter.config, modules, sizes
        self.device = modules.language_model.audio_lm_head.weight.device
        self.spec = _spec(prompter, modules, sizes)

    def weights(self) -> ModelWeights:
        return model_weights(self.modules)

    # Off the step thread

    def opening(self, prompt: Prompt, frames: int) -> Samples:
        return np.zeros(0, np.float32)  # every utterance is decoded by itself

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
        self.window = window_places(self.sizes.chunks[-1], self.modules.decoder.context_frames, self.codebook)

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

    def has_preroll(self, prompt: Prompt) -> bool:
        return False  # every utterance is decoded by itself: the codec does not decode the voice's frames

    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        return -1

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
        """Weights and sound; the window of codes is negligible."""
        sound = frames * self.spec.samples_per_frame * _SAMPLE_BYTES
        return weight_bytes(self.modules.decoder.acoustic_decoder) + rows * sound


def _spec(prompter: HiggsPrompter, modules: Modules, sizes: FrameSizes) -> ModelSpec:
    llama, decoder, model = prompter.config.llama, modules.decoder, modules.language_model
    dtype = model.audio_lm_head.weight.dtype
    return ModelSpec(
        **vars(prompter.spec),
        kv=(KVGroup(KV, llama.num_hidden_layers, llama.num_key_value_heads, llama.head_dim, dtype),),
        state=state_fields(sizes, decoder.context_frames),
        frame_weight_bytes=weight_bytes(*model.step_modules(), decoder.acoustic_decoder),
        codec_lookahead=decoder.context_frames,
    )
