"""A decoder stack over a few tokens that all see each other, and nothing else: no cache, no mask.

With few rows its weights are what a step waits for, and kernels that wait for each other: all layers are one op. With
many the library's products are what it waits for. Those do nothing else (a profile of
products with a sum inside has a copy for every other one), so a sum and the norm after it are one op between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import LocalWeights
from sonant.layers.attention import LocalContext
from sonant.layers.transformer import DecoderLayer, DecoderStack, StackShape

FEW_TOKENS = 64  # that kernels for few rows take (kernels/triton/small_m_tile.py)


class LocalLayer(DecoderLayer):
    def weights(self, cos: Tensor, sin: Tensor) -> LocalWeights:
        mixer, mlp = self.self_attn, self.mlp
        return LocalWeights(
            self.input_layernorm.weight, mixer.qkv_proj.weight, mixer.heads(cos, sin), mixer.o_proj.weight,
            self.post_attention_layernorm.weight, mlp.gate_up_proj.weight, mlp.down_proj.weight,
        )  # fmt: skip

    @property
    def hooked(self) -> bool:
        """Somebody wants to know when it is called, as those do who bring its weights just before."""
        return bool(self._forward_pre_hooks or self._forward_hooks)


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
        if any(layer.hooked for layer in self._layers()):
            for layer in self._layers():
                x = layer(x, cos, sin, context)
            return x
        if tokens.shape[0] * tokens.shape[1] > FEW_TOKENS:
            return self._through_many(x, cos, sin, context)
        return ops.local_stack(x, [layer.weights(cos, sin) for layer in self._layers()], again)

    def _through_many(self, x: Tensor, cos: Tensor, sin: Tensor, context: LocalContext) -> Tensor:
        normed = next(self._layers()).input_layernorm(x)
        for layer, following in pairwise([*self._layers(), None]):
            assert layer is not None
            mixer, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
            gathered = mixer.gather(ops.linear(normed, mixer.qkv_proj.weight), cos, sin, context)
            x, normed = ops.add_norm(x, ops.linear(gathered, mixer.o_proj.weight), norm.weight, norm.eps)
            inner = ops.swiglu(ops.linear(normed, mlp.gate_up_proj.weight))
            branch = ops.linear(inner, mlp.down_proj.weight)
            if following is None:
                break
            norm = following.input_layernorm
            x, normed = ops.add_norm(x, branch, norm.weight, norm.eps)
        return x + branch

    def _layers(self) -> Iterator[LocalLayer]:
        for layer in self.layers:
            assert isinstance(layer, LocalLayer)
            yield layer
