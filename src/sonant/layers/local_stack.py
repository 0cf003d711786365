"""A decoder stack over a few tokens that all see each other, and nothing else: no cache, no mask.

With few rows its weights are what a step waits for: norms and sums are inside the products, and each op is told which
weight the next one reads. With many the library's products are what it waits for. Those do nothing else (a profile of
products with a sum inside has a copy for every other one), so a sum and the norm after it are one op between them.
Products of quantised weights have sums inside however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from sonant.kernels import ops
from sonant.layers.attention import LocalContext
from sonant.layers.quantized import QuantizedLinear
from sonant.layers.transformer import DecoderLayer, DecoderStack, StackShape

Way = TypeVar("Way")
_FEW_TOKENS = 64  # that kernels for few rows take (kernels/triton/small_m_tile.py)


class LocalLayer(DecoderLayer):
    def forward(self, way: Callable[[], Way]) -> Way:  # type: ignore[override]
        """One of the ways below, gone as a call of this module: who brings its weights waits for that
        (engine/weight_lane.py)."""
        return way()

    def between(
        self, x: Tensor, cos: Tensor, sin: Tensor, context: LocalContext, following: LocalLayer | None
    ) -> Tensor:
        """With few rows. x may be written over, and it is known which layer is next."""
        mixer, mlp, norm = self.self_attn, self.mlp, self.input_layernorm
        then = None if following is None else following.self_attn.qkv_proj.weight
        gate_up, down = mlp.gate_up_proj.weight, mlp.down_proj.weight
        qkv = ops.norm_linear(x, norm.weight, norm.eps, mixer.qkv_proj.weight, mixer.o_proj.weight)
        x = context.mix_onto(qkv, mixer.heads(cos, sin), mixer.o_proj.weight, x, gate_up)
        norm = self.post_attention_layernorm
        return ops.linear_add(ops.norm_gated(x, norm.weight, norm.eps, gate_up, down), down, x, then)

    def branch(
        self, x: Tensor, normed: Tensor, cos: Tensor, sin: Tensor, context: LocalContext
    ) -> tuple[Tensor, Tensor]:
        """With many: x, and what is still to be added to it."""
        mixer, mlp, norm = self.self_attn, self.mlp, self.post_attention_layernorm
        gathered = mixer.gather(ops.linear(normed, mixer.qkv_proj.weight), cos, sin, context)
        x, normed = ops.add_norm(x, ops.linear(gathered, mixer.o_proj.weight), norm.weight, norm.eps)
        return x, ops.linear(ops.swiglu(ops.linear(normed, mlp.gate_up_proj.weight)), mlp.down_proj.weight)


class LocalStack(DecoderStack):
    def __init__(self, shape: StackShape) -> None:
        assert not shape.layer_scale, "a local layer adds its branches as they are"
        super().__init__(shape, LocalLayer)

    def over(self, tokens: Tensor) -> Tensor:
        """[N, T, hidden] → the same after all layers and the final norm."""
        return self.norm(self.through(tokens))

    def through(self, tokens: Tensor, *, again: bool = False) -> Tensor:
        """The same before the final norm. The tokens may be written over. `again`: other tokens are next."""
        cos, sin = self.rotations_at(range(tokens.shape[1]), tokens.dtype)
        context, x = LocalContext(), tokens
        quantized = isinstance(next(self._layers()).mlp.down_proj, QuantizedLinear)
        if tokens.shape[0] * tokens.shape[1] > _FEW_TOKENS and not quantized:
            return self._through_many(x, cos, sin, context)
        for layer, following in pairwise([*self._layers(), next(self._layers()) if again else None]):
            assert layer is not None
            x = layer(partial(layer.between, x, cos, sin, context, following))
        return x

    def _through_many(self, x: Tensor, cos: Tensor, sin: Tensor, context: LocalContext) -> Tensor:
        normed = next(self._layers()).input_layernorm(x)
        for layer, following in pairwise([*self._layers(), None]):
            assert layer is not None
            x, branch = layer(partial(layer.branch, x, normed, cos, sin, context))
            if following is None:
                break
            norm = following.input_layernorm
            x, normed = ops.add_norm(x, branch, norm.weight, norm.eps)
        return x + branch

    def _layers(self) -> Iterator[LocalLayer]:
        for layer in self.layers:
            assert isinstance(layer, LocalLayer)
            yield layer
