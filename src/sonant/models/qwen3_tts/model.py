"""Qwen3-TTS as the engine sees it: prefill, frame and codec over row state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sonant.config import FrameSizes
from sonant.device_copy import to_device
from sonant.errors import Unsupported
from sonant.models.base import PackedSize, PrefillItem, PrefillShape
from sonant.models.memory import Memory
from sonant.models.prompt import Ints, Prompt
from sonant.models.qwen3_tts.checkpoint import Modules
from sonant.models.qwen3_tts.codec import CodecState
from sonant.models.qwen3_tts.frame import KV, FrameDecoder, TalkerStep
from sonant.models.qwen3_tts.layout import Layout
from sonant.models.qwen3_tts.packed_prompts import PackedPrompts, PackedShape, positions_needed
from sonant.models.qwen3_tts.prompt import FAMILY
from sonant.models.qwen3_tts.prompter import Qwen3TTSPrompter
from sonant.models.qwen3_tts.row_state import settle, start_rows, state_fields
from sonant.models.qwen3_tts.weight_blocks import model_weights
from sonant.models.spec import KVGroup, ModelSpec
from sonant.models.weight_blocks import ModelWeights
from sonant.models.weights import weight_bytes
from sonant.types import Samples
from sonant.voice import Voice

_CACHED_PREROLLS = 32
_SAMPLE_BYTES = 4


class Qwen3TTS:
    def __init__(self, prompter: Qwen3TTSPrompter, modules: Modules, sizes: FrameSizes) -> None:
        self.prompter, self.config, self.modules = prompter, prompter.config, modules
        self.device = modules.talker.codec_head.weight.device
        self.spec = _spec(prompter, modules, sizes)
        # The codec's tails and ring after a voice's reference, by voice; only the step thread uses it.
        self.prerolls: OrderedDict[str, tuple[Tensor, Tensor]] = OrderedDict()

    def weights(self) -> ModelWeights:
        return model_weights(self.modules)

    # Off the step thread

    @torch.inference_mode()
    def opening(self, prompt: Prompt, frames: int) -> Samples:
        """The end of the reference that the official package leaves in its result: it cuts at a share of the samples,
        computed in floating point and rounded down, so that now and then the last one stays."""
        layout: Layout = prompt.payload
        if layout.preroll is None:
            return np.zeros(0, np.float32)
        reference = layout.preroll
        size, total = self.spec.samples_per_frame, len(reference) + frames
        left = len(reference) * size - int(len(reference) / total * (total * size))
        if not left:
            return np.zeros(0, np.float32)
        codes = torch.from_numpy(reference).to(self.device)[None]
        first = torch.zeros(1, dtype=torch.long, device=self.device)
        return self.modules.decoder(codes, first)[0, -left:].float().cpu().numpy()

    @torch.inference_mode()
    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        speaker, encoder = self.modules.speaker, self.modules.encoder
        if speaker is None or encoder is None:
            raise Unsupported(f"a {self.config.kind} checkpoint cannot clone a voice; load a Base checkpoint")
        clip = torch.from_numpy(samples).to(self.device)
        tensors = {"embedding": speaker.embed(clip).float().cpu().numpy()}
        if text:
            tensors["codes"] = encoder.encode(clip).cpu().numpy().astype(np.int32)
        return Voice(tensors, text or None, name, FAMILY)

    # On the step thread

    def bind(self, memory: Memory) -> None:
        self.memory = memory
        settle(memory)
        self.decoder = FrameDecoder(self.config, self.modules.talker, memory)
        self.frame_parts = self.decoder.parts()

    def packed_size(self, item: PrefillItem) -> PackedSize:
        return PackedSize(positions_needed(item))

    def pack(self, items: Sequence[PrefillItem], shape: PrefillShape) -> Ints:
        return self._packed_shape(shape).pack(items, shape.prompts, self.memory.scratch_row)

    @torch.inference_mode()
    def prefill(self, packed: Tensor, shape: PrefillShape) -> None:
        talker, memory, prompts = self.modules.talker, self.memory, PackedPrompts(packed, self._packed_shape(shape))
        x = talker.embed_position(prompts.text, prompts.codes)
        x = torch.where(prompts.speaks, x + prompts.speaker.to(x.dtype), x)
        at = prompts.at[:, :-1].where(prompts.real, 0)
        context = memory.prefill_context(KV, memory.tables[prompts.rows], at, prompts.real, shape.span_blocks)
        talker.model(x[:, :-1].contiguous(), at, context)
        start_rows(memory, prompts.ready_rows, prompts.lengths, x[:, -1])
        trailing = talker.embed_text(prompts.trailing.clamp(min=0))  # what is past a row's own text is never read
        memory.rows["trailing"][:, : trailing.shape[1]].index_copy_(0, prompts.ready_rows, trailing)

    def _packed_shape(self, shape: PrefillShape) -> PackedShape:
        return PackedShape(shape.positions, self.config.talker.num_code_groups, self.config.talker.hidden_size)

    def has_preroll(self, prompt: Prompt) -> bool:
        return prompt.payload.preroll is not None

    @torch.inference_mode()
    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        layout: Layout = item.prompt.payload
        if layout.preroll is None:
            return -1
        tails, ring, position = (self.memory.rows[n] for n in ("codec_tails", "codec_ring", "codec_position"))
        known = self.prerolls.get(layout.voice_key)
        if known is not None:
            self.prerolls.move_to_end(layout.voice_key)
            tails[item.row], ring[:, :, item.row] = known
            position[item.row] = len(layout.preroll)
            return -1
        rows = to_device(np.array([item.row]), self.device)
        reference = layout.preroll[start : start + frames]
        self._vocode(rows, to_device(reference, self.device)[None])
        if start + len(reference) < len(layout.preroll):
            return start + len(reference)
        self.prerolls[layout.voice_key] = tails[item.row].clone(), ring[:, :, item.row].clone()
        if len(self.prerolls) > _CACHED_PREROLLS:
            self.prerolls.popitem(last=False)
        return -1

    def begin_frame(self, rows: Tensor, span_blocks: int, variant: int) -> TalkerStep:
        return TalkerStep(rows, span_blocks, variant)

    @torch.inference_mode()
    def codec(self, rows: Tensor, frames: int) -> Tensor:
        r = self.memory.rows
        first = r["codec_frame"][rows]
        ring = r["codes"]
        index = first[:, None] + torch.arange(frames, device=self.device)
        codes = ring[rows[:, None], index % ring.shape[1]]
        decoded = index < r["frame"][rows][:, None]  # a last chunk may reach past the frames there are
        samples = self._vocode(rows, torch.where(decoded[..., None], codes, self.decoder.no_code))
        r["codec_frame"][rows] = first + frames
        return samples.float()

    def _vocode(self, rows: Tensor, codes: Tensor) -> Tensor:
        decoder, r = self.modules.decoder, self.memory.rows
        first = r["codec_position"][rows]
        state = CodecState(decoder.unpack(r["codec_tails"][rows]), r["codec_ring"], rows)
        samples = decoder(codes, first, state)
        r["codec_tails"][rows] = decoder.pack(state.tails)
        r["codec_position"][rows] = first + codes.shape[1]
        return samples

    def codec_floor_bytes(self, rows: int, frames: int) -> int:
        """Weights and sound, and for each row: tails read and written, the ring read, its new positions written."""
        decoder, r = self.modules.decoder, self.memory.rows
        tails, ring = r["codec_tails"], r["codec_ring"][:, :, 0]
        slots = ring.shape[2]
        state = 2 * tails.shape[1] + ring.numel() // slots * (slots + frames)
        sound = frames * self.spec.samples_per_frame * _SAMPLE_BYTES
        weights = weight_bytes(decoder) - weight_bytes(decoder.quantizer)
        return weights + rows * (state * tails.element_size() + sound)


def _spec(prompter: Qwen3TTSPrompter, modules: Modules, sizes: FrameSizes) -> ModelSpec:
    talker, dtype = prompter.config.talker, modules.talker.codec_head.weight.dtype
    return ModelSpec(
        **vars(prompter.spec),
        kv=(KVGroup(KV, talker.num_hidden_layers, talker.num_key_value_heads, talker.head_dim, dtype),),
        state=state_fields(prompter.config, modules, sizes),
        frame_weight_bytes=_frame_weight_bytes(modules),
    )


def _frame_weight_bytes(modules: Modules) -> int:
    """Talker, predictor once for each codebook after the first, and codec; embeddings are only looked up."""
    predictor = modules.talker.code_predictor
    passes = predictor.groups - 1
    codec = weight_bytes(modules.decoder) - weight_bytes(modules.decoder.quantizer)
    talker = weight_bytes(modules.talker.model.layers, modules.talker.codec_head, predictor.lm_head)
    return talker + passes * weight_bytes(predictor.model.layers, predictor.small_to_mtp_projection) + codec
