"""The decoder stack that language models and codecs share: one definition, many configurations.

Parameter names are the published ones; q/k/v and gate/up are fused (see models/weights/naming.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import FrameLayer, FrameStack, Heads, Unscaled
from sonant.kernels.reference.quantized import E4M3, LARGEST
from sonant.layers.attention import Context, PagedContext, ShortContext
from sonant.layers.quantized import Projection, QuantizedLinear
from sonant.layers.rope import rope_tables
from sonant.layers.rope_scaling import Scaling


@dataclass(frozen=True)
class StackShape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float | None  # None: no rotary positions
    qk_norm: bool = True
    layer_scale: bool = False
    rope_scaling: Scaling | None = None


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.folded = False  # its gain was moved into the weights that follow, and is ones now: see fold_gains

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Attention(nn.Module):
    def __init__(self, shape: StackShape, index: int) -> None:
        super().__init__()
        self.index, self.shape = index, shape
        self.bounded = False  # all values fit in eight bits: see bound_values
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv_proj: Projection = nn.Linear(shape.hidden, width, bias=False)
        self.o_proj: Projection = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, norm: RMSNorm, cos: Tensor, sin: Tensor, context: Context) -> Tensor:
        """The heads' outputs for the normed x, before `o_proj`."""
        weight = self.qkv_proj.weight
        if norm.folded and isinstance(context, ShortContext):  # its kernel can finish the norm
            qkv = ops.unscaled_linear(x, weight)
            if qkv is not None:
                heads = self.heads(cos, sin)._replace(unscaled=Unscaled(x, norm.eps))
                return context.mix(self.index, qkv, heads).flatten(2)
        return self.gather(ops.norm_linear(x, norm.weight, norm.eps, weight), cos, sin, context)

    def gather(self, qkv: Tensor, cos: Tensor, sin: Tensor, context: Context) -> Tensor:
        return context.mix(self.index, qkv, self.heads(cos, sin)).flatten(2)

    def heads(self, cos: Tensor, sin: Tensor) -> Heads:
        s = self.shape
        q_weight, k_weight = (self.q_norm.weight, self.k_norm.weight) if s.qk_norm else (None, None)
        return Heads(q_weight, k_weight, cos, sin, s.heads, s.kv_heads, s.eps, bounded=self.bounded)


class MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up_proj: Projection = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down_proj: Projection = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """The gated values of the normed x, before `down_proj`."""
        return ops.norm_gated(x, norm.weight, norm.eps, self.gate_up_proj.weight, norm.folded)


def quantize_projections(module: nn.Module) -> None:
    """Replace the projections of all layers in `module` by ones with weights of eight bits, not filled yet."""
    for part in [p for p in module.modules() if isinstance(p, Attention | MLP)]:
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                with child.weight.device:
                    setattr(part, name, QuantizedLinear(child.in_features, child.out_features))


@torch.no_grad()
def fold_gains(stack: DecoderStack, *, heads: bool) -> None:
    """For decoding only: fold the gains of the layers' norms into the projections after them, and leave ones. What is
    left of a norm is one factor per row, which needs no kernel of its own: the reader of the product applies it.
    `heads`: also before attention, where its kernel can do so. Weights of eight bits stay as they are.
    """
    for layer in stack.layers:
        assert isinstance(layer, DecoderLayer)
        folded: list[tuple[RMSNorm, Projection]] = [(layer.post_attention_layernorm, layer.mlp.gate_up_proj)]
        if heads:
            folded.append((layer.input_layernorm, layer.self_attn.qkv_proj))
        for norm, projection in folded:
            if isinstance(projection, nn.Linear):
                projection.weight.mul_(norm.weight)
                norm.weight.fill_(1.0)
                norm.folded = True


@torch.no_grad()
def bound_values(stack: DecoderStack) -> None:
    """For decoding with weights of eight bits: scale values so that attention's output fits into eight bits.

    A value is the product of a row of the weight and a normed input, whose norm is the root of its size, so it is at
    most the norm of the weight's row times that; and attention takes means of values. A power of two in the scale of
    its row brings each value's bound to at most the largest number of e4m3, and the columns of the output projection
    have the inverse. So no kernel after attention has to look for each row's largest value.
    """
    for layer in stack.layers:
        assert isinstance(layer, DecoderLayer)
        mixer, gain = layer.self_attn, layer.input_layernorm.weight
        project, out = mixer.qkv_proj, mixer.o_proj
        if not isinstance(project, QuantizedLinear) or not isinstance(out, QuantizedLinear):
            continue
        mixer.bounded = True
        if project.values.is_meta:
            continue
        shape = mixer.shape
        first = (shape.heads + shape.kv_heads) * shape.head_dim
        lines = project.values[first:].float() * project.scale[first:, None] * gain.float()
        most = lines.norm(dim=1) * shape.hidden**0.5 / LARGEST
        power = torch.where(most > 0, most, torch.ones_like(most)).log2().ceil()
        project.scale[first:].mul_(torch.exp2(-power))
        by_head = power.view(shape.kv_heads, 1, -1).expand(-1, shape.heads // shape.kv_heads, -1).flatten()
        highest = by_head.max()
        out.values.copy_((out.values.float() * torch.exp2(by_head - highest)).to(E4M3))
        out.scale.mul_(torch.exp2(highest))


class DecoderLayer(nn.Module):
    def __init__(self, shape: StackShape, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, index)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape.hidden, shape.intermediate)
        self.self_attn_layer_scale = LayerScale(shape.hidden) if shape.layer_scale else nn.Identity()
        self.mlp_layer_scale = LayerScale(shape.hidden) if shape.layer_scale else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: Context) -> Tensor:
        mixed = self.self_attn(x, self.input_layernorm, cos, sin, context)
        x = _onto(x, self.self_attn.o_proj, mixed, self.self_attn_layer_scale)
        inner = self.mlp(x, self.post_attention_layernorm)
        return _onto(x, self.mlp.down_proj, inner, self.mlp_layer_scale)

    def as_frame_layer(self) -> FrameLayer:
        attention, mlp = self.self_attn, self.mlp
        return FrameLayer(
            self.input_layernorm.weight, attention.qkv_proj.weight, attention.q_norm.weight, attention.k_norm.weight,
            attention.o_proj.weight, self.post_attention_layernorm.weight,
            mlp.gate_up_proj.weight, mlp.down_proj.weight,
        )  # fmt: skip


def _onto(x: Tensor, projection: Projection, branch: Tensor, scale: nn.Module) -> Tensor:
    """The residual sum: in one op with the projection or scale before it, but not in training, which may have hooks."""
    if isinstance(scale, nn.Identity) and not torch.is_grad_enabled():
        return ops.linear_add(branch, projection.weight, x)
    if isinstance(scale, LayerScale) and not torch.is_grad_enabled():
        return torch.addcmul(x, projection(branch), scale.scale)
    return x + scale(projection(branch))


class DecoderStack(nn.Module):
    """Layers and the final norm. Subclasses add the embeddings that the checkpoint keeps beside them."""

    def __init__(self, shape: StackShape, layer: Callable[[StackShape, int], nn.Module] = DecoderLayer) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(layer(shape, i) for i in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.register_buffer("rope", None, persistent=False)

    def prepare(self, positions: int) -> None:
        """Tabulate the rotations of positions 0 … `positions` - 1, which forward otherwise computes each time."""
        weight = self.norm.weight
        every = torch.arange(positions, device=weight.device)[None]
        cos, sin = self._tables(every, weight.dtype)
        self.rope = torch.stack([cos[0], sin[0]])

    def forward(self, x: Tensor, positions: Tensor, context: Context) -> Tensor:
        """x [B, T, hidden] at positions [B, T] → hidden states after the final norm. x may be overwritten."""
        cos, sin = self.rotations(positions, x.dtype)
        by_steps = isinstance(context, PagedContext) and context.slots is None
        stack = self.as_frame_stack() if by_steps and ops.has_whole_pass("paged_pass", x) else None
        if stack is not None and isinstance(context, PagedContext):
            place = context.cache, context.tables, context.positions, context.span_blocks
            return ops.paged_pass(stack, x, cos, sin, *place)
        return self._run(x, cos, sin, context)

    def rotations(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [B, T, 1, head_dim] at positions [B, T]."""
        if self.rope is None:
            return self._tables(positions, dtype)
        # Unlike an index in brackets this takes positions of 32 bits as they are, without a kernel that casts them.
        cos, sin = self.rope.index_select(1, positions.flatten()).unflatten(1, positions.shape)
        return cos, sin

    def _tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return rope_tables(positions, self.shape.head_dim, self.shape.rope_theta, dtype, self.shape.rope_scaling)

    def forward_at(self, x: Tensor, positions: range, context: Context) -> Tensor:
        """`forward` for rows that are all at the same positions, known to the host: rotations are not looked up."""
        return self._run(x, *self.rotations_at(positions, x.dtype), context)

    def as_frame_stack(self) -> FrameStack | None:
        """The stack as `ops.frame_pass` and `ops.paged_pass` take it. None: layers must be called as modules, since
        their calls have hooks (such as those that bring their weights), or they are of another kind."""
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        heard = any(layer._forward_pre_hooks or layer._forward_hooks for layer in layers)
        if heard or len(layers) < len(self.layers) or not self.shape.qk_norm or self.shape.layer_scale:
            return None
        made = tuple(layer.as_frame_layer() for layer in layers)
        return FrameStack(made, self.norm.weight, self.shape.heads, self.shape.kv_heads, self.shape.eps)

    def rotations_at(self, positions: range, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [1, T, 1, head_dim]."""
        if self.rope is None:
            every = torch.arange(positions.start, positions.stop, device=self.norm.weight.device)[None]
            return self._tables(every, dtype)
        cos, sin = self.rope[:, None, positions.start : positions.stop]
        return cos, sin

    def _run(self, x: Tensor, cos: Tensor, sin: Tensor, context: Context) -> Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin, context)
        return self.norm(x)
