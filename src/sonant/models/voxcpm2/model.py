"""VoxCPM2 as the engine sees it: prefill, decode step and codec over row state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from sonant.config import FrameSizes
from sonant.device_copy import to_device
from sonant.models.base import PackedSize, PrefillItem, PrefillShape
from sonant.models.memory import Memory
from sonant.models.prompt import Ints, Prompt
from sonant.models.spec import KVGroup, ModelSpec
from sonant.models.voxcpm2.flow import evaluations, schedule
from sonant.models.voxcpm2.frame import BASE, RESIDUAL, FrameDecoder, PatchStep
from sonant.models.voxcpm2.knobs import FLOW_STEPS, USUAL_STEPS
from sonant.models.voxcpm2.layout import Layout
from sonant.models.voxcpm2.modules import VoxCPM2Modules
from sonant.models.voxcpm2.packed_prompts import PATCHES, TEXT, PackedPrompts, PackedShape, size_of
from sonant.models.voxcpm2.prompt import FAMILY
from sonant.models.voxcpm2.prompter import VoxCPM2Prompter
from sonant.models.voxcpm2.row_state import settle, start_rows, state_fields
from sonant.models.voxcpm2.vae import VAEDecoder
from sonant.models.voxcpm2.vae_encoder import VAEEncoder
from sonant.models.voxcpm2.weight_blocks import model_weights
from sonant.models.weight_blocks import ModelWeights
from sonant.models.weights import weight_bytes
from sonant.types import Samples
from sonant.voice import Voice

_CACHED_PRIMERS = 32
_SAMPLE_BYTES = 4


@dataclass(frozen=True)
class Modules:
    model: VoxCPM2Modules
    decoder: VAEDecoder
    encoder: VAEEncoder  # for cloning only


class VoxCPM2:
    def __init__(self, prompter: VoxCPM2Prompter, modules: Modules, sizes: FrameSizes) -> None:
        self.prompter, self.config, self.modules = prompter, prompter.config, modules
        self.device = modules.model.stop_head.weight.device
        self.spec = _spec(prompter, modules, sizes)
        # The codec's tails after a primer, by the digest of its patches; only the step thread uses it.
        self.primers: OrderedDict[bytes, Tensor] = OrderedDict()

    def weights(self) -> ModelWeights:
        return model_weights(self.modules)

    # Off the step thread

    def opening(self, prompt: Prompt, frames: int) -> Samples:
        return np.zeros(0, np.float32)  # the primer's sound is not part of the result

    @torch.inference_mode()
    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        clip, encoder = torch.from_numpy(samples).to(self.device), self.modules.encoder
        tensors = {"reference": encoder.encode_clip(clip, "right").cpu().numpy()}
        if text:
            tensors["prompt"] = encoder.encode_clip(clip, "left").cpu().numpy()
        return Voice(tensors, text or None, name, FAMILY)

    # On the step thread

    def bind(self, memory: Memory) -> None:
        self.memory = memory
        settle(memory)
        estimator = self.modules.model.feat_decoder.estimator
        schedules = {steps: schedule(estimator, steps) for steps in FLOW_STEPS}
        self.frame_parts = FrameDecoder(self.config, self.modules.model, schedules, memory).parts()

    def packed_size(self, item: PrefillItem) -> PackedSize:
        return size_of(item)

    def pack(self, items: Sequence[PrefillItem], shape: PrefillShape) -> Ints:
        return self._packed_shape(shape).pack(items, shape.prompts, self.memory.scratch_row)

    @torch.inference_mode()
    def prefill(self, packed: Tensor, shape: PrefillShape) -> None:
        m, memory = self.modules.model, self.memory
        prompts = PackedPrompts(packed, self._packed_shape(shape))
        x = m.base_lm.embed_tokens(prompts.text)
        embedded = torch.zeros_like(x)
        before = memory.rows["before"].new_zeros(len(x), self.config.patch_size, self.config.feat_dim)
        audio = torch.zeros_like(prompts.text, dtype=torch.bool)
        if prompts.audio is not None and prompts.patches is not None:
            audio, patches = prompts.audio, prompts.patches
            made = m.embed_patches(patches.flatten(0, 1)).unflatten(0, x.shape[:2])
            embedded = made.masked_fill(~audio[..., None], 0)
            x = torch.where(audio[..., None], embedded, x)
            before = patches[:, -1]
        tables = memory.tables[prompts.rows]
        place = (tables, prompts.at, prompts.real, shape.span_blocks)
        state = m.base_lm(x[:, :-1].contiguous(), prompts.at, memory.prefill_context(BASE, *place))
        if shape.kind == PATCHES:
            state = torch.where(audio[:, :-1, None], m.fsq_layer(state), state)
        m.residual_lm(m.residual_input(state, embedded[:, :-1]), prompts.at, memory.prefill_context(RESIDUAL, *place))
        start_rows(memory, prompts.ready_rows, prompts.lengths, x[:, -1], audio[:, -1], before)

    def _packed_shape(self, shape: PrefillShape) -> PackedShape:
        return PackedShape(shape.positions, shape.kind, (self.config.patch_size, self.config.feat_dim))

    def has_preroll(self, prompt: Prompt) -> bool:
        return len(prompt.payload.primer) > 0

    @torch.inference_mode()
    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        """Prime the codec with the end of the clip that is continued, so that sound goes on from there."""
        layout: Layout = item.prompt.payload
        if not len(layout.primer):
            return -1
        key, tails = blake2b(layout.primer.tobytes()).digest(), self.memory.rows["codec_tails"]
        if key in self.primers:
            self.primers.move_to_end(key)
            tails[item.row] = self.primers[key]
            return -1
        rows = torch.full((1,), item.row, device=self.device)
        self._vocode(rows, to_device(layout.primer, self.device)[None])
        self.primers[key] = tails[item.row].clone()
        if len(self.primers) > _CACHED_PRIMERS:
            self.primers.popitem(last=False)
        return -1

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> PatchStep:
        return PatchStep(rows, span_blocks, variant)

    @torch.inference_mode()
    def codec(self, rows: Tensor, frames: int) -> Tensor:
        r = self.memory.rows
        first, ring = r["codec_frame"][rows], r["patches"]
        index = first[:, None] + torch.arange(frames, device=self.device)
        patches = ring[rows[:, None], index % ring.shape[1]]
        made = index < r["frame"][rows][:, None]  # a last chunk may reach past the patches there are
        samples = self._vocode(rows, patches.masked_fill(~made[..., None, None], 0))
        r["codec_frame"][rows] = first + frames
        return samples.float()

    def _vocode(self, rows: Tensor, patches: Tensor) -> Tensor:
        """patches [B, n, patch_size, feat_dim] → their samples; each row goes on from its state."""
        decoder, tails = self.modules.decoder, self.memory.rows["codec_tails"]
        state = decoder.unpack(tails[rows])
        samples = decoder(patches.flatten(1, 2).to(tails.dtype), state)
        tails[rows] = decoder.pack(state)
        return samples

    def codec_floor_bytes(self, rows: int, frames: int) -> int:
        """Weights and sound, and for each row the tails read and written."""
        tails = self.memory.rows["codec_tails"]
        sound = frames * self.spec.samples_per_frame * _SAMPLE_BYTES
        state = 2 * tails.shape[1] * tails.element_size()
        return weight_bytes(self.modules.decoder) + rows * (state + sound)


def _spec(prompter: VoxCPM2Prompter, modules: Modules, sizes: FrameSizes) -> ModelSpec:
    config, decoder, model = prompter.config, modules.decoder, modules.model
    lm, dtype = config.lm, model.stop_head.weight.dtype
    layers = {BASE: lm.num_hidden_layers, RESIDUAL: config.residual_layers}
    again = (evaluations(USUAL_STEPS) - 1) * weight_bytes(model.feat_decoder)  # each evaluation reads the estimator
    embedding = weight_bytes(model.base_lm.embed_tokens)
    return ModelSpec(
        **vars(prompter.spec),
        kv=tuple(KVGroup(n, count, lm.num_key_value_heads, lm.kv_channels, dtype) for n, count in layers.items()),
        state=state_fields(config, sizes, dtype, decoder.tails_size, decoder.dtype),
        frame_weight_bytes=weight_bytes(model, decoder) - embedding + again,
        prefill_kinds=(TEXT, PATCHES),
    )
