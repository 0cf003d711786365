"""All the ops that layers may call, typed; `dispatch` picks the implementation by device.

Contracts are in reference.py, next to the code that defines them.
"""

from __future__ import annotations

from torch import Tensor

from sonant.kernels.dispatch import choose


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return choose("rms_norm", x.device.type).function(x, weight, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return choose("rotate", x.device.type).function(x, cos, sin)


def swiglu(gate_up: Tensor) -> Tensor:
    return choose("swiglu", gate_up.device.type).function(gate_up)


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return choose("snake_beta", x.device.type).function(x, alpha, beta)


def paged_write(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    choose("paged_write", cache.device.type).function(cache, k, v, slots)


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    return choose("paged_attention", q.device.type).function(q, cache, tables, positions, span_blocks)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    return choose("dense_attention", q.device.type).function(q, k, v, visible)


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    return choose("uniforms", seed.device.type).function(seed, frame, count)


def sample(
    logits: Tensor, uniform: Tensor, *, greedy: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
) -> Tensor:
    return choose("sample", logits.device.type).function(
        logits, uniform, greedy=greedy, temperature=temperature, top_k=top_k, top_p=top_p
    )


def penalize(
    logits: Tensor, seen: Tensor, penalty: Tensor, banned: Tensor, stop_id: int, ban_stop: Tensor
) -> Tensor:
    return choose("penalize", logits.device.type).function(logits, seen, penalty, banned, stop_id, ban_stop)
