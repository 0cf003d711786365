"""A decoder stack over a few tokens that all see each other, and nothing else: no cache, no mask.

With few rows a step waits for weights, and kernels wait for each other, so all layers are one op. With many rows it
waits for the library's products. Nothing is fused into those (with the sum inside, a profile shows a copy for every
other product), so a sum and the norm after it are one op between them. Products of quantised weights include the sum
for any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import LocalWeights
from sonant.layers.attention import LocalContext
from sonant.layers.quantized import QuantizedLinear
from sonant.layers.transformer import DecoderLayer, DecoderStack, StackShape

Way = TypeVar("Way")
FEW_TOKENS = 64  # the most that kernels for few rows take (kernels/triton/small_m_tile.py)


class LocalLayer(DecoderLayer):
    def forward(self, way: Callable[[], Way]) -> Way:  # type: ignore[override]
        """Run one of the methods below as a call of this module, since hooks on such calls bring its weights
        (engine/weight_lane.py)."""
        return way()

    def weights(self, cos: Tensor, sin: Tensor) -> LocalWeights:
        mixer, mlp = self.self_attn, self.mlp
        return LocalWeights(
            self.input_layernorm.weight, mixer.qkv_proj.weight, mixer.heads(cos, sin), mixer.o_proj.weight,
            self.post_attention_layernorm.weight, mlp.gate_up_proj.weight, mlp.down_proj.weight,
        )  # fmt: skip

    def alone(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """For few rows: run this layer as a stack of one. x may be overwritten."""
        return ops.local_stack(x, [self.weights(cos, sin)])

    def branch(
        self, x: Tensor, normed: Tensor, cos: Tensor, sin: Tensor, context: LocalContext
    ) -> tuple[Tensor, Tensor]:
        """For many rows → x, and the branch that is still to be added to it."""
        mixer, mlp, norm = self.self_attn, self.mlp, self.post_attention_layernorm
        gathered = mixer.gather(ops.linear(normed, mixer.qkv_proj.weight), cos, sin, context)
        x, normed = ops.add_norm(x, ops.linear(gathered, mixer.o_proj.weight), norm.weight, norm.eps)
        return x, ops.linear(ops.swiglu(ops.linear(normed, mlp.gate_up_proj.weight)), mlp.down_proj.weight)

    @property
    def hooked(self) -> bool:
        """Whether there are hooks on its calls, such as those that bring its weights just before."""
        return bool(self._forward_pre_hooks or self._forward_hooks)


class LocalStack(DecoderStack):
    def __init__(self, shape: StackShape) -> None:
        assert not shape.layer_scale, "a local layer adds its branches as they are"
        super().__init__(shape, LocalLayer)

    def over(self, tokens: Tensor) -> Tensor:
        """[N, T, hidden] → the same after all layers and the final norm."""
        return self.norm(self.through(tokens))

    def through(self, tokens: Tensor) -> Tensor:
        """`over` without the final norm. The tokens may be overwritten."""
        cos, sin = self.rotations_at(range(tokens.shape[1]), tokens.dtype)
        layers, x = list(self._layers()), tokens
        quantized = isinstance(layers[0].mlp.down_proj, QuantizedLinear)
        if tokens.shape[0] * tokens.shape[1] > FEW_TOKENS and not quantized:
            return self._through_many(x, cos, sin, LocalContext())
        if not any(layer.hooked for layer in layers):
            return ops.local_stack(x, [layer.weights(cos, sin) for layer in layers])
        for layer in layers:
            x = layer(partial(layer.alone, x, cos, sin))
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
