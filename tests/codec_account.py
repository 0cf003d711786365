"""What a call of Qwen3-TTS's codec decoder does, at full size: operations, bytes and kernels, layer by layer.

    python tests/codec_account.py

It needs no GPU: kernels are counted on tensors without memory, as they would be launched on an H200.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sonant.kernels import ops, reference
from sonant.kernels.cuda import conv as cuda_conv
from sonant.kernels.cuda import unit as cuda_unit
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded
from sonant.kernels.reference import Heads, Place, RingPlace
from sonant.kernels.triton import conv, depthwise, snake
from sonant.models.qwen3_tts.codec import CodecDecoder, CodecState
from sonant.models.qwen3_tts.config import CodecDecoderConfig
from sonant.models.qwen3_tts.synthetic.presets import codec_config
from sonant.text_table import grid

H200 = Gpu("NVIDIA H200", (9, 0))
FRAMES, MOST_FRAMES = 16, 1024  # of a chunk, and of a call (EngineConfig.codec_batch_s)
NOT_A_KERNEL = ("empty", "new_empty", "zeros", "view", "slice", "select.", "permute", "transpose", "t.", "unsqueeze",
                "squeeze", "split", "expand", "unbind", "as_strided", "detach", "alias", "reshape", "unfold", "flatten",
                "unflatten", "numpy_T", "mT", "contiguous")  # fmt: skip


def config() -> CodecDecoderConfig:
    return CodecDecoderConfig.from_dict(codec_config("1.7b")["decoder_config"], "codec")


def made(device: str) -> CodecDecoder:
    with torch.device(device):
        decoder = CodecDecoder(config())
        if device != "meta":
            for name, value in decoder.named_parameters():
                if value.dim() > 1:  # small in branches and the last convolution, so that nothing clips
                    faint = 0.15 if name.startswith("decoder.6") else 0.3 if "conv2" in name else 1.2
                    value.data.normal_(0, faint * value[0].numel() ** -0.5)
                elif name.endswith(("alpha", "beta", "bias")):
                    value.data.normal_(0, 0.02)
    decoder = decoder.to(torch.bfloat16).eval().requires_grad_(False)
    decoder.prepare()
    decoder.pre_transformer.prepare(4096)
    return decoder


class Rows:
    """The rows' state as the engine keeps it, by row index; calls gather and scatter it."""

    def __init__(self, decoder: CodecDecoder, rows: int, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
        self.decoder = decoder
        layers, two, *rest = decoder.ring_shape(FRAMES)
        self.tails = torch.zeros(rows + 1, decoder.tails_size, dtype=dtype, device=device)
        self.ring = torch.zeros(layers, two, rows + 1, *rest, dtype=dtype, device=device)
        self.position = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.codes = torch.zeros(rows, FRAMES, 16, dtype=torch.int32, device=device)

    def call(self, rows: Tensor, frames: int) -> Tensor:
        first = self.position[rows]
        state = CodecState(self.decoder.unpack(self.tails[rows]), self.ring, rows)
        samples = self.decoder(self.codes[: len(rows), :frames], first, state)
        self.tails[rows] = self.decoder.pack(state.tails)
        self.position[rows] = first + frames
        return samples.float()


# What a call is made of


@dataclass(frozen=True)
class Layer:
    group: str
    name: str
    flops: int  # for one frame
    values: int  # activations that are read and written for one frame
    weights: int
    count: int = 1


def layers() -> list[Layer]:
    c, found = config(), []
    hidden, inner, heads = c.hidden_size, c.intermediate_size, c.num_attention_heads * c.head_dim
    weights = hidden * 3 * heads + heads * hidden + 3 * hidden * inner
    window = c.sliding_window * heads * 2
    found.append(Layer("front", "codes, pre_conv", 2 * 3 * 512 * 1024, 16 * 512 + 1024, 3 * 512 * 1024))
    flops, values = 2 * weights + 4 * c.sliding_window * heads, 8 * hidden + 5 * heads + window // FRAMES
    layer = Layer("transformer", "layer", flops, values, weights, c.num_hidden_layers)
    found += [layer, Layer("transformer", "in, out", 4 * hidden * c.latent_dim, 4 * hidden, 2 * hidden * c.latent_dim)]
    steps, latent = 1, c.latent_dim
    for rate in c.upsampling_ratios:
        steps *= rate
        products = steps * 10 * latent * latent
        found.append(Layer("upsample", f"×{rate}", 2 * products, steps * 12 * latent, 10 * latent * latent))
    channels = c.decoder_dim
    first = 7 * latent * channels
    found.append(Layer("first", f"{latent}→{channels}", 2 * steps * first, steps * (latent + channels), first))
    for n, rate in enumerate(c.upsample_rates):
        thin, up = channels // 2, 2 * rate * channels * channels // 2
        found.append(Layer(f"block {n}", f"up {channels}→{thin}", 2 * steps * up,
                           steps * channels + steps * rate * thin, up))  # fmt: skip
        steps, channels = steps * rate, thin
        unit = 8 * channels * channels
        found.append(Layer(f"block {n}", f"unit {channels}", 2 * steps * unit, 2 * steps * channels, unit, 3))
    found.append(Layer("last", f"{channels}→1", 2 * steps * 7 * channels, steps * (channels + 1), 7 * channels))
    return found


def floor_ms(layer: Layer, frames: int, bytes_per_s: float, flops_per_s: float) -> float:
    moved = 2 * (layer.values * frames + layer.weights)
    return 1e3 * layer.count * max(moved / bytes_per_s, layer.flops * frames / flops_per_s)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if not name.startswith(NOT_A_KERNEL):
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(seen: Counter[str]) -> Iterator[None]:
    """Count our own kernels that are recorded in the block."""
    launch, note = LaunchRecorder.launch, LaunchRecorder.note

    def count_launch(self: LaunchRecorder, kernel: Any, *args: Any, **options: Any) -> None:
        seen[f"triton {kernel.fn.__name__}"] += 1
        launch(self, kernel, *args, **options)

    def count_note(self: LaunchRecorder, form: Any) -> None:
        seen[f"cuda {form.name}"] += 1
        note(self, form)

    patch = mock.patch.object
    with patch(LaunchRecorder, "launch", count_launch), patch(LaunchRecorder, "note", count_note):
        yield


def recorded(decoder: CodecDecoder, shapes: list[tuple[int, int]]) -> tuple[list[AnyForm], list[Counter[str]]]:
    """Return the forms of kernels that calls of so many rows and frames need, and how often each kernel and op runs."""
    forms: list[AnyForm] = []
    counts = []
    recorder = LaunchRecorder(H200, forms.append)
    for rows, frames in shapes:
        with torch.inference_mode(), planning_for(H200), launches_recorded(recorder), Counting() as counting:
            state, index = Rows(decoder, rows, "meta"), torch.empty(rows, dtype=torch.int64, device="meta")
            counting.seen.clear()
            with counted(counting.seen):
                state.call(index, frames)
        counts.append(counting.seen)
    return forms, counts


def account() -> None:
    ceiling = 4.3e12, 790e12
    sizes = 16, 256, 1024
    lines = [("group", "layer", "count", "MFLOP", "kB", "MB weights", *(f"µs {n}" for n in sizes))]
    for which in [*([x] for x in layers()), layers()]:
        flops, values, weights = (sum(x.count * getattr(x, n) for x in which) for n in ("flops", "values", "weights"))
        floors = (f"{1e3 * sum(floor_ms(x, n, *ceiling) for x in which):.1f}" for n in sizes)
        name = (which[0].group, which[0].name, str(which[0].count)) if len(which) == 1 else ("all", "", "")
        lines.append((*name, f"{flops / 1e6:.1f}", f"{2 * values / 1e3:.0f}", f"{2 * weights / 1e6:.1f}", *floors))
    print("operations and bytes of one frame, and the least time of calls of so many frames\n")
    print(grid(lines))
    shapes = [(16, 1), (16, 16), (64, 16)]
    with VARIANTS["old"]():
        _, before = recorded(made("meta"), shapes)
    _, after = recorded(made("meta"), shapes)
    for (rows, frames), old, new in zip(shapes, before, after, strict=True):
        print(f"\n{rows} × {frames}: {sum(old.values())} kernels before, {sum(new.values())} now")
        print("  ", ", ".join(f"{count} {op}" for op, count in new.most_common()))


# Variants


def gathered_attention(qkv: Tensor, heads: Heads, ring: Tensor, place: RingPlace) -> Tensor:
    """Attention as it was before it had a kernel."""
    q, _, _ = ops.qk_rope(qkv, heads, Place(ring, place.written))
    bias = getattr(place, "narrow", None)
    if bias is None:
        bias = place.narrow = place.bias.to(ring.dtype)  # type: ignore[attr-defined]
    keys, values = ring
    return ops.dense_attention(q, keys[place.rows], values[place.rows], bias)


def plain_attention(qkv: Tensor, heads: Heads, ring: Tensor, place: RingPlace) -> Tensor:
    """Textbook attention, as the reference in float32."""
    q, _, _ = reference.qk_rope(qkv, heads, Place(ring, place.written))
    keys, values = (part[place.rows].repeat_interleave(heads.heads // heads.kv_heads, 2) for part in ring)
    scores = torch.einsum("bthd,bshd->bhts", q, keys) * q.shape[-1] ** -0.5 + place.bias.to(q.dtype)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), values)


@contextmanager
def only(
    *, ring: bool = True, one: bool = True, sine: bool = True, units: bool = True, convolutions: bool = True
) -> Iterator[None]:
    """Use only some of the newer kernels: attention over the ring, the last convolution, the GPU's sine, residual units
    and other convolutions in CUDA C++."""
    with ExitStack() as stack:
        patch = mock.patch.object
        for wanted, module in ((units, cuda_unit), (convolutions, cuda_conv)):
            if not wanted:
                stack.enter_context(patch(module, "takes", lambda *given: False))
        if not ring:
            stack.enter_context(patch(ops, "ring_attention", gathered_attention))
        if not one:
            stack.enter_context(patch(conv, "is_for_one", lambda weight, dilation: False))
        if not sine:
            for file in (conv, depthwise, snake):
                stack.enter_context(patch(file, "quick_sine", lambda x: False))
        yield


VARIANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "old": partial(only, ring=False, one=False, sine=False, units=False, convolutions=False),
    "ring, one": partial(only, sine=False, units=False, convolutions=False),
    "+ sine": partial(only, units=False, convolutions=False),
    "+ units": partial(only, convolutions=False),
    "all": only,
}


if __name__ == "__main__":
    sys.exit(account())
