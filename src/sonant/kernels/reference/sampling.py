"""How an id is drawn: stateless random numbers, penalty and mask, the draw itself, and the end of a step that draws a
frame of codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF
_BELOW_ONE = 1 - 2**-24  # the largest number of float32 that is


@dataclass(frozen=True)
class SamplingParams:
    """How each row draws, every tensor [B]. Rows with `greedy` not 0 take the largest logit; top_k 0 is no limit."""

    greedy: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor


class LogitMask(NamedTuple):
    """The penalty and masks that keep ids from being drawn."""

    seen: Tensor  # [N, V] bool: ids that were drawn before, to which `repetition_penalty` applies
    repetition_penalty: Tensor  # [B]
    suppressed: Tensor  # [V] bool: ids that are never drawn
    stop_id: int
    suppress_stop: Tensor  # [B] bool: rows that may not stop yet
    seen_rows: Tensor | None = None  # [B]: which line of `seen` is each row's; None: line b is row b's


class Lookup(NamedTuple):
    """A table lookup of the drawn ids, done by the op that draws them."""

    table: Tensor  # [V, D]
    out: Tensor  # [B, D], written: the line of each row's id

    def fetch(self, ids: Tensor) -> None:
        torch.index_select(self.table, 0, ids, out=self.out)


class Ras(NamedTuple):
    """Repetition-aware sampling: an id that was drawn too often of late is drawn again, from all ids."""

    recent: Tensor  # [B, W, K] int32: the last W rows drawn, the latest last; -1: none was
    length: Tensor  # [B] int32: how many of these rows, the latest ones, are looked at; 0: no RAS
    repeats: Tensor  # [B] int32: an id that occurs in them this many times is drawn again
    first_special: int  # ids from here on begin and end a stream: however often they occur, they are not counted


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each row, from Philox-4×32-10 at (seed, frame, index): no state, no order.

    seed [B, 2] int32 (low and high word), frame [B]. → [B, count] float32
    """
    device = seed.device
    index = torch.arange(count, device=device, dtype=torch.int64).expand(seed.shape[0], count)
    c0, c1 = index, frame.long()[:, None].expand_as(index)
    c2 = c3 = torch.zeros_like(index)
    k0, k1 = (seed.long()[:, i, None] & _LOW32 for i in (0, 1))
    for _ in range(10):
        p0, p1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW32) ^ c1 ^ k0,
            p1 & _LOW32,
            ((p0 >> 32) & _LOW32) ^ c3 ^ k1,
            p0 & _LOW32,
        )
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _LOW32, (k1 + _PHILOX_WEYL[1]) & _LOW32
    # 23 bits: u · total then stays strictly below total in float32
    return (c0 >> 9).float() * 2.0**-23


def penalize(logits: Tensor, mask: LogitMask) -> Tensor:
    """Apply the repetition penalty to ids already drawn, then -inf to suppressed ids and to stopping too early."""
    factor = mask.repetition_penalty[:, None]
    seen = mask.seen if mask.seen_rows is None else mask.seen[mask.seen_rows]
    logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    stop = torch.arange(logits.shape[-1], device=logits.device) == mask.stop_id
    return logits.masked_fill(mask.suppressed | (stop & mask.suppress_stop[:, None]), float("-inf"))


def sample(
    logits: Tensor, uniform: Tensor, params: SamplingParams, mask: LogitMask | None = None, lookup: Lookup | None = None
) -> Tensor:
    """Draw one id for each row: penalty and mask if given, temperature, top-k, top-p, then one uniform number.

    logits [B, V]; uniform [B]. Greedy rows take the largest logit after penalty and mask. The draw inverts the
    distribution in id order, so a row's result does not depend on its neighbours. A row with NaN gets some id.
    """
    logits = logits.float()
    if mask is not None:
        logits = penalize(logits, mask)
    best = logits.argmax(-1)
    scores = logits / params.temperature[:, None]
    ranked = scores.sort(-1, descending=True).values
    vocab = scores.shape[-1]
    limit = torch.where(params.top_k > 0, params.top_k, vocab).clamp(max=vocab).long()
    kth = ranked.gather(-1, limit[:, None] - 1)
    ranked_probs = ranked.masked_fill(ranked < kth, float("-inf")).softmax(-1)
    # Rounded sums may reach 1 before the last id, but a top-p of 1 keeps all.
    before = (ranked_probs.cumsum(-1) - ranked_probs).clamp_(max=_BELOW_ONE)
    kept = ((before < params.top_p[:, None]) & (ranked >= kth)).sum(-1, keepdim=True)
    # At least one, even if it is NaN: a row whose numbers have gone wrong must not fail the call for all others.
    lowest = ranked.gather(-1, kept.clamp_(min=1) - 1)
    weights = (scores - ranked[:, :1]).exp().masked_fill(scores < lowest, 0)
    drawn = _invert(weights, uniform)
    ids = torch.where(params.greedy != 0, best, drawn)
    if lookup is not None:
        lookup.fetch(ids)
    return ids


def ras_sample(logits: Tensor, uniform: Tensor, params: SamplingParams, ras: Ras) -> Tensor:
    """Draw an id of each codebook as `sample` does. If it repeats too often (RAS), draw again from the softmax of the
    logits themselves, without temperature, top-k or top-p. Greedy rows are no exception.

    logits [B, K, V]; uniform [B, 2K]: for the K first draws, then for those after RAS. → [B, K]
    """
    rows, books, vocab = logits.shape
    flat = logits.float().view(-1, vocab)
    each = SamplingParams(**{name: value.repeat_interleave(books) for name, value in vars(params).items()})
    ids = sample(flat, uniform[:, :books].flatten(), each).view(rows, books)
    age = torch.arange(ras.recent.shape[1], 0, -1, device=logits.device)  # the latest row is one step old
    looked_at = (age <= ras.length[:, None])[:, :, None]
    again = looked_at & (ras.recent == ids[:, None]) & (ids < ras.first_special)[:, None]
    too_often = (again.sum(1) >= ras.repeats[:, None]) & (ras.length > 0)[:, None]
    anew = _invert((flat - flat.amax(-1, keepdim=True)).exp(), uniform[:, books:].flatten())
    return torch.where(too_often, anew.view(rows, books), ids)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The id, in id order, at which the distribution's cumulative sum passes the uniform number."""
    running = weights.cumsum(-1)
    return (running <= uniform[:, None] * running[:, -1:]).sum(-1)


class FrameCounters(NamedTuple):
    """The counters of each row in the batch before the step, [B] int32 each."""

    position: Tensor
    frame: Tensor
    trailing_length: Tensor


class FrameMemory(NamedTuple):
    """The state of all rows, [N, …]; all but `trailing` is written at the rows of the batch."""

    codes: Tensor  # [N, ring, groups] int32
    input: Tensor  # [N, hidden]
    counters: Tensor  # [N, 3] int32: position, frame, status
    trailing: Tensor  # [N, tokens, hidden]: the text that is still to be said, by frame


class FrameTables(NamedTuple):
    """What each code of each group adds to the next input."""

    table: Tensor  # [all groups' codes, hidden]
    offsets: Tensor  # [groups] int64: where each group begins
    pad: Tensor  # [hidden]: takes the place of text when none is left


def frame_step(
    first: Tensor, rest: Tensor, status: Tensor, own: FrameCounters, rows: Tensor, memory: FrameMemory,
    tables: FrameTables, running: int,
) -> Tensor:  # fmt: skip
    """Store codes first [B] and rest [B, groups - 1] int64 at `rows` [B], compute the next input from them and the
    text, and advance the counters of rows whose status [B] is `running` → records [B, 1 + groups] int32: status,
    codes."""
    codes = torch.cat([first[:, None], rest], 1)
    record = torch.cat([status[:, None], codes.int()], 1)
    memory.codes[rows, own.frame % memory.codes.shape[1]] = record[:, 1:]
    text = memory.trailing[rows, own.frame.clamp(max=memory.trailing.shape[1] - 1)]
    has_text = (own.frame < own.trailing_length)[:, None]
    spoken = F.embedding(codes + tables.offsets, tables.table).sum(-2)
    memory.input[rows] = spoken + torch.where(has_text, text, tables.pad)
    going = (status == running).int()
    memory.counters.index_copy_(0, rows, torch.stack([own.position + going, own.frame + going, status], 1))
    return record
