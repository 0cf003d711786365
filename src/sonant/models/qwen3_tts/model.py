"""Qwen3-TTS as the engine sees it: prompt, prefill, frame and codec over row state.

Invariants: a row's `position` is the number of its tokens in the KV cache, its `input` the vector that the next
frame consumes there, its `frame` the number of frames drawn. A row that has stopped is frozen: steps may still
run over it (the host learns of a stop one step later) and change nothing that is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sonant.errors import BadText, Unsupported
from sonant.kernels import ops
from sonant.kernels.reference import LogitMask
from sonant.layers.attention import PagedContext
from sonant.models.base import CAPPED, RUNNING, STOPPED, Ints, Memory, ModelSpec, PrefillItem, Prompt, to_device
from sonant.models.qwen3_tts.checkpoint import Modules
from sonant.models.qwen3_tts.codec import CodecState
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.packed_prompts import Lines, LineShape, positions_needed
from sonant.models.qwen3_tts.predictor import Draw
from sonant.models.qwen3_tts.prompt import Layout, PromptBuilder
from sonant.models.qwen3_tts.row_state import COUNTED, Limits, draw_values, sampling_values, staged_fields, state_fields
from sonant.models.row_layout import LINES, Columns, counted
from sonant.types import Samples, SpeechRequest, Voice

_MIN_FRAMES = 2  # the official generation forbids the stop code in its first two draws
_SPECIAL_CODES = 1024  # the top of the first codebook's vocabulary: never drawn, but for the stop code
_CACHED_PREROLLS = 32


class Qwen3TTS:
    def __init__(self, config: Qwen3TTSConfig, modules: Modules, builder: PromptBuilder, limits: Limits) -> None:
        self.config, self.modules, self.builder, self.limits = config, modules, builder, limits
        self.device = next(modules.talker.parameters()).device
        talker = config.talker
        self.spec = ModelSpec(
            sample_rate=config.codec.sample_rate,
            samples_per_frame=config.codec.samples_per_frame,
            codebooks=talker.num_code_groups,
            kv_layers=talker.num_hidden_layers,
            kv_heads=talker.num_key_value_heads,
            kv_head_dim=talker.head_dim,
            kv_dtype=modules.talker.codec_head.weight.dtype,
            staged=staged_fields(),
            state=state_fields(config, modules, limits),
            max_positions=talker.max_position_embeddings,
            frame_weight_bytes=_frame_weight_bytes(modules),
            voices=builder.voices,
            languages=builder.languages,
            clones=modules.speaker is not None,
            instructs=config.kind != "base",
            segment_chars=limits.segment_chars,
        )
        banned = torch.arange(talker.vocab_size) >= talker.vocab_size - _SPECIAL_CODES
        banned[talker.codec_eos_token_id] = False
        self.banned = banned.to(self.device)
        # on the device, since a plain number in a step is a kernel that fills a tensor with it
        known = 1 + max(RUNNING, STOPPED, CAPPED)
        self.statuses = torch.arange(known, dtype=torch.int32, device=self.device).unbind()
        self.true = torch.tensor(True, device=self.device)
        self.no_code = torch.tensor(0, device=self.device)
        with torch.inference_mode():
            pad = torch.tensor([config.tts_pad_token_id], device=self.device)
            self.pad_text = modules.talker.embed_text(pad)[0]
        # codec tails and ring by voice; only the step thread
        self.prerolls: OrderedDict[str, tuple[Tensor, Tensor]] = OrderedDict()

    # Off the step thread

    def prompt(self, request: SpeechRequest) -> Prompt:
        layout = self.builder.layout(request)
        if len(layout.trailing) > self.limits.trailing_tokens:
            raise BadText(
                f"the text has {len(layout.trailing)} tokens, over {self.limits.trailing_tokens} for one utterance; "
                "split it at sentence ends"
            )
        budget = min(self.limits.frame_budget(layout.spoken_tokens), self.config.max_new_tokens - 1)
        max_frames = budget if request.max_frames is None else request.max_frames
        staged = sampling_values(request.sampling.over(self.config.sampling), request.seed or 0)
        staged |= {"frame_limit": max_frames, "trailing_length": len(layout.trailing)}
        return Prompt(length=len(layout.text), keys=layout.keys(), staged=staged, max_frames=max_frames, payload=layout)

    @torch.inference_mode()
    def encode_voice(self, samples: Samples, text: str | None, name: str) -> Voice:
        speaker, encoder = self.modules.speaker, self.modules.encoder
        if speaker is None or encoder is None:
            raise Unsupported(f"a {self.config.kind} checkpoint cannot clone a voice; load a Base checkpoint")
        clip = torch.from_numpy(samples).to(self.device)
        embedding = speaker.embed(clip)
        codes = encoder.encode(clip).cpu().numpy().astype(np.int32) if text else None
        return Voice(embedding.float().cpu().numpy(), codes, text, name)

    # On the step thread

    def bind(self, memory: Memory) -> None:
        self.rows, self.kv, self.tables = memory.rows, memory.kv, memory.tables
        self.block_tokens, self.scratch_row = memory.kv.shape[3], len(memory.tables) - 1
        self.columns = Columns([*self.spec.staged, *counted(self.spec.state)], memory.tables.shape[1])
        for name in ("position", "frame", "codec_position", "codec_frame"):
            self.rows[name].zero_()
        self.rows["status"].fill_(STOPPED)  # frozen: the scratch row for ever, the others until prefill readies them
        for name in ("temperature", "subtalker_temperature"):
            self.rows[name].fill_(1)
        if self.device.type == "cuda":
            self._compile_prefill()

    def _compile_prefill(self) -> None:
        """Run a prefill into scratch memory, so that no listener waits for kernels to be compiled."""
        pad = np.full(8, self.config.tts_pad_token_id, np.int32)
        codes = np.zeros((len(pad), self.spec.codebooks), np.int32)
        layout = Layout(pad, codes, None, 0, pad[:1], None, "", has_frames=True, spoken_tokens=1)
        prompt = Prompt(length=len(pad), keys=layout.keys(), staged={}, max_frames=1, payload=layout)
        self.prefill([PrefillItem(self.scratch_row, prompt, 0, len(pad) - 1)])

    @torch.inference_mode()
    def prefill(self, items: Sequence[PrefillItem]) -> None:
        work = [i for i in items if i.end > i.start]
        if work:
            self._fill_cache(work)
        ready = [i for i in items if i.last]
        if ready:
            self._make_ready(ready)

    def _fill_cache(self, items: Sequence[PrefillItem]) -> None:
        longest = max(i.end - i.start for i in items)
        x = self._embed(items, [i.start for i in items], longest)
        rows = to_device(np.array([i.row for i in items]), self.device)
        spans = to_device(np.array([(i.start, i.end) for i in items]), self.device)
        positions = spans[:, :1] + torch.arange(longest, device=self.device)
        real = positions < spans[:, 1:]
        span_blocks = -(-max(i.end for i in items) // self.block_tokens)
        positions = positions.where(real, 0)
        context = self._context(rows, positions, real, span_blocks)
        self.modules.talker.model(x, positions, context)

    def _embed(self, items: Sequence[PrefillItem], starts: Sequence[int], length: int) -> Tensor:
        """[items, length, hidden] of the prompts from `starts` on; past a prompt's end anything."""
        text = np.full((len(items), length), -1, np.int32)
        codes = np.full((len(items), length, self.spec.codebooks), -1, np.int32)
        layouts: list[Layout] = [i.prompt.payload for i in items]
        for n, (layout, start) in enumerate(zip(layouts, starts, strict=True)):
            count = min(length, len(layout.text) - start)
            text[n, :count], codes[n, :count] = layout.text[start:][:count], layout.codes[start:][:count]
        x = self.modules.talker.embed_position(
            to_device(text, self.device),
            to_device(codes, self.device),
            with_groups=any(layout.has_frames for layout in layouts),
        )
        for n, (layout, start) in enumerate(zip(layouts, starts, strict=True)):
            if layout.speaker is not None and start <= layout.speaker_at < start + length:
                x[n, layout.speaker_at - start] += to_device(layout.speaker, self.device).to(x.dtype)
        return x

    def _make_ready(self, items: Sequence[PrefillItem]) -> None:
        rows = to_device(np.array([i.row for i in items]), self.device)
        lengths = to_device(np.array([i.prompt.length for i in items]), self.device)
        self._start_rows(rows, lengths, self._embed(items, [i.prompt.length - 1 for i in items], 1)[:, 0])
        for item in items:
            trailing = item.prompt.payload.trailing
            if len(trailing):
                self.rows["trailing"][item.row, : len(trailing)] = self.modules.talker.embed_text(
                    to_device(trailing, self.device)
                )

    def _start_rows(self, rows: Tensor, lengths: Tensor, inputs: Tensor) -> None:
        r = self.rows
        r["input"][rows] = inputs
        r["position"][rows] = lengths.int() - 1
        r["status"][rows] = torch.where(rows == self.scratch_row, STOPPED, RUNNING).int()
        r["seen"].index_fill_(0, rows, False)
        for name in ("frame", "codec_position", "codec_frame"):
            r[name].index_fill_(0, rows, 0)
        r["codec_tails"].index_fill_(0, rows, 0)
        r["codec_ring"].index_fill_(2, rows, 0)

    def line_positions(self, item: PrefillItem) -> int:
        return positions_needed(item)

    def pack_lines(self, items: Sequence[PrefillItem], count: int, positions: int) -> Ints:
        return self._line_shape(positions).pack(items, count, self.scratch_row)

    @torch.inference_mode()
    def prefill_lines(self, lines: Tensor, positions: int) -> None:
        talker, line = self.modules.talker, Lines(lines, self._line_shape(positions))
        x = talker.embed_position(line.text, line.codes, with_groups=True)
        x = torch.where(line.speaks, x + line.speaker.to(x.dtype), x)
        at = line.at[:, :-1].where(line.real, 0)
        context = self._context(line.rows, at, line.real, self.tables.shape[1])
        talker.model(x[:, :-1].contiguous(), at, context)
        self._start_rows(line.rows, line.lengths, x[:, -1])
        trailing = talker.embed_text(line.trailing.clamp(min=0))  # what is past a row's own text is never read
        self.rows["trailing"][:, :positions].index_copy_(0, line.rows, trailing)

    def _line_shape(self, positions: int) -> LineShape:
        return LineShape(positions, self.spec.codebooks, self.config.talker.hidden_size)

    @torch.inference_mode()
    def preroll(self, item: PrefillItem, start: int, frames: int) -> int:
        layout: Layout = item.prompt.payload
        if layout.preroll is None:
            return -1
        tails, ring, position = (self.rows[name] for name in ("codec_tails", "codec_ring", "codec_position"))
        known = self.prerolls.get(layout.voice_key)
        if known is not None:
            self.prerolls.move_to_end(layout.voice_key)
            tails[item.row], ring[:, :, item.row] = known
            position[item.row] = len(layout.preroll)
            return -1
        rows = to_device(np.array([item.row]), self.device)
        piece = layout.preroll[start : start + frames]
        self._decode(rows, to_device(piece, self.device)[None])
        if start + len(piece) < len(layout.preroll):
            return start + len(piece)
        self.prerolls[layout.voice_key] = tails[item.row].clone(), ring[:, :, item.row].clone()
        if len(self.prerolls) > _CACHED_PREROLLS:
            self.prerolls.popitem(last=False)
        return -1

    @torch.inference_mode()
    def frame(self, rows: Tensor, span_blocks: int) -> Tensor:
        r, talker = self.rows, self.modules.talker
        lines = r[LINES][rows]
        own = self.columns.views(lines)
        position, frame = own["position"][:, None], own["frame"]
        context = PagedContext(self.kv, lines[:, : self.tables.shape[1]], position, None, span_blocks)
        hidden = talker.model(r["input"][rows][:, None], position, context)[:, 0]
        uniforms = ops.uniforms(own["seed"], frame, self.spec.codebooks)
        stop_id = self.config.talker.codec_eos_token_id
        mask = LogitMask(r["seen"], own["repetition_penalty"], self.banned, stop_id, frame < _MIN_FRAMES, rows)
        first = Draw(**draw_values(own)).pick(ops.linear(hidden, talker.codec_head.weight), uniforms[:, 0], mask)
        stops = first == stop_id
        running, stopped, capped = self.statuses[RUNNING], self.statuses[STOPPED], self.statuses[CAPPED]
        ended = torch.where(stops, stopped, torch.where(frame >= own["frame_limit"], capped, running))
        status = torch.where(own["status"] == RUNNING, ended, own["status"])
        r["seen"][rows, first] = self.true
        first = torch.where(stops, self.no_code, first)  # masked_fill would copy it first
        rest = talker.code_predictor.generate(
            hidden, talker.model.codec_embedding(first), uniforms[:, 1:], Draw(**draw_values(own, prefix="subtalker_"))
        )
        codes = torch.cat([first[:, None], rest], 1)
        record = torch.cat([status[:, None], codes.int()], 1)
        self._advance(rows, codes, record, own)
        return record

    def _advance(self, rows: Tensor, codes: Tensor, record: Tensor, own: Mapping[str, Tensor]) -> None:
        """Store the frame and make the next input, in the same step that drew it."""
        r, frame, status = self.rows, own["frame"], record[:, 0]
        r["codes"][rows, frame % r["codes"].shape[1]] = record[:, 1:]
        trailing = r["trailing"][rows, frame.clamp(max=r["trailing"].shape[1] - 1)]
        has_text = (frame < own["trailing_length"])[:, None]
        r["input"][rows] = self.modules.talker.embed_frame(codes) + torch.where(has_text, trailing, self.pad_text)
        going = (status == RUNNING).int()
        moved = torch.stack([own["position"] + going, frame + going, status], 1)
        places = [self.columns.places[name][0] for name in COUNTED]
        r[LINES][:, places[0].start : places[-1].stop].index_copy_(0, rows, moved)

    @torch.inference_mode()
    def codec(self, rows: Tensor, frames: int) -> Tensor:
        r = self.rows
        first = r["codec_frame"][rows]
        ring = r["codes"]
        index = first[:, None] + torch.arange(frames, device=self.device)
        codes = ring[rows[:, None], index % ring.shape[1]]
        drawn = index < r["frame"][rows][:, None]  # a last chunk may reach past the frames there are
        samples = self._decode(rows, torch.where(drawn[..., None], codes, self.no_code))
        r["codec_frame"][rows] = first + frames
        return samples.float()

    def _decode(self, rows: Tensor, codes: Tensor) -> Tensor:
        decoder, r = self.modules.decoder, self.rows
        first = r["codec_position"][rows]
        state = CodecState(decoder.unpack(r["codec_tails"][rows]), r["codec_ring"], rows)
        samples = decoder(codes, first, state)
        r["codec_tails"][rows] = decoder.pack(state.tails)
        r["codec_position"][rows] = first + codes.shape[1]
        return samples

    def _context(self, rows: Tensor, positions: Tensor, real: Tensor | None, span_blocks: int) -> PagedContext:
        """Of positions [B, T]: those that are `real`, or without that one for each row."""
        tables = self.tables[rows]
        if real is None:
            return PagedContext(self.kv, tables, positions, None, span_blocks)
        blocks = tables.gather(1, positions // self.block_tokens).long()
        slots = blocks * self.block_tokens + positions % self.block_tokens
        slots = slots.where(real, 0)  # block 0 is scratch
        return PagedContext(self.kv, tables, positions, slots.flatten(), span_blocks)


def _frame_weight_bytes(modules: Modules) -> int:
    """Talker, predictor once for each codebook after the first, and codec; embeddings are only looked up."""

    def size(*parts: nn.Module) -> int:
        return sum(p.numel() * p.element_size() for part in parts for p in part.parameters())

    predictor = modules.talker.code_predictor
    passes = predictor.groups - 1
    codec = size(modules.decoder) - size(modules.decoder.quantizer)
    return size(modules.talker.model.layers, modules.talker.codec_head, predictor.lm_head) + (
        passes * size(predictor.model.layers, predictor.small_to_mtp_projection) + codec
    )
