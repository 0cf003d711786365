"""The codec as it is trained: the served encoder and decoder with a quantiser between them that can learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonant.layers.attention import FullContext
from sonant.layers.conv_stream import (
    CausalConv1d,
    CausalConvTranspose1d,
    DepthwiseConv1d,
    SnakeBeta,
    channels_last,
)
from sonant.models.qwen3_tts.codec import CodecDecoder, ConvNeXt
from sonant.models.qwen3_tts.codec_encoder import CausalConv, CodecEncoder
from sonant.models.qwen3_tts.codec_encoder import LayerScale as EncoderScale
from training.codec.config import CodecTraining
from training.codec.quantizer import SplitTrainer
from training.codec.sounds import Sounds

_BRANCH_SCALE = 0.1  # residual branches start small; the published 0.01 learns too slowly for so few steps
_BRANCH_ENDS = (".block.3", ".conv2")
_BRANCH_SPREAD, _OUTPUT_SPREAD = 0.3, 0.1
_CONVOLUTIONS = (CausalConv1d, CausalConvTranspose1d, DepthwiseConv1d, CausalConv)


class Codec(nn.Module):
    def __init__(self, config: CodecTraining) -> None:
        super().__init__()
        self.config = config
        self.encoder = CodecEncoder(config.shape.encoder(), config.shape.codebooks)
        self.decoder = CodecDecoder(config.shape.decoder())
        self.quantizer = SplitTrainer(self.encoder.quantizer, self.decoder.quantizer, config.quantizer)
        self.sounds = Sounds(config.shape.codebook_size)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        for name, value in self.decoder.named_parameters():
            if name.endswith("layer_scale.scale"):
                value.fill_(_BRANCH_SCALE)
        for module in self.modules():
            if isinstance(module, EncoderScale):
                module.scale.fill_(_BRANCH_SCALE)
            elif isinstance(module, ConvNeXt):
                module.gamma.fill_(_BRANCH_SCALE)
        for book in self.codebook_parameters():
            book.requires_grad_(False)
        channels_last(self)

    def fit_scales(self, samples: Tensor) -> None:
        """Rescale every layer, in the order in which `samples` [B, T] pass, to give values of unit spread.

        With torch's own start a dozen convolutions shrink what depends on the input to a trace beside their
        biases, and the first thousand steps would go by before the latents say anything.
        """
        last = f"decoder.decoder.{len(self.decoder.decoder) - 1}"
        hooks = []
        inner = {m.conv for m in self.modules() if isinstance(m, _CONVOLUTIONS)}
        for name, module in self.named_modules():
            fits = isinstance(module, (*_CONVOLUTIONS, nn.Conv1d, nn.Linear))
            if fits and module not in inner:
                spread = _OUTPUT_SPREAD if name == last else _BRANCH_SPREAD if name.endswith(_BRANCH_ENDS) else 1.0
                hooks.append(module.register_forward_pre_hook(_Fit(spread)))
                bias = getattr(module, "conv", module).bias
                if bias is not None:
                    nn.init.zeros_(bias)
        self.decode(self.quantizer.bypass(self.encoder(samples)))
        for hook in hooks:
            hook.remove()

    def snakes(self) -> list[SnakeBeta]:
        return [m for m in self.decoder.modules() if isinstance(m, SnakeBeta)]

    def codebook_parameters(self) -> list[nn.Parameter]:
        """The decoder's copies of the codebooks; `share_codebooks` fills them."""
        return [p for n, p in self.decoder.named_parameters() if "._codebook." in n]

    @torch.no_grad()
    def share_codebooks(self) -> None:
        """Give the decoder what the encoder learnt, and each side the projection that only the other uses."""
        encoding, decoding = self.encoder.quantizer, self.decoder.quantizer
        pairs = (
            (encoding.semantic_residual_vector_quantizer, decoding.rvq_first),
            (encoding.acoustic_residual_vector_quantizer, decoding.rvq_rest),
        )
        for ours, theirs in pairs:
            for i, layer in enumerate(ours.layers):
                source = layer.get_submodule("codebook")
                target = theirs.vq.get_submodule(f"layers.{i}._codebook")
                for from_name, to_name in (("cluster_usage", "cluster_usage"), ("embed_sum", "embedding_sum")):
                    target.get_parameter(to_name).copy_(source.get_buffer(from_name))
            theirs.input_proj.weight.copy_(ours.input_proj.weight)
            ours.output_proj.weight.copy_(theirs.output_proj.weight)

    def decode(self, latents: Tensor) -> Tensor:
        """[B, dim, F] → samples [B, F · 1920], not clipped: outside ±1 the losses still have to see a slope."""
        return decode_latents(self.decoder, latents)

    def reconstruct(self, samples: Tensor, labels: Tensor | None = None) -> Tensor:
        """[B, T] → the same after coding, as it will be served. Given labels [B, T / STEP], the first codes come from
        them instead of the encoder."""
        depth = torch.full((len(samples),), self.config.shape.codebooks, device=samples.device)
        told = None if labels is None else self.sounds(labels)
        quantized = self.quantizer(self.encoder(samples), depth, told, update=False)
        return self.decode(quantized.latents)[:, : samples.shape[1]].clamp(-1, 1)


def decode_latents(decoder: CodecDecoder, latents: Tensor) -> Tensor:
    """`CodecDecoder.forward` from the point where the codes have been looked up (a test holds them together)."""
    x, _ = decoder.pre_conv(latents.mT, None)
    positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
    x = decoder.pre_transformer(x, positions, FullContext(decoder.config.sliding_window))
    first, *blocks, snake, last = decoder.decoder
    snakes = [*(block.opening for block in blocks), snake]
    _, active = first(decoder.upsampled(x, None), None, snake=snakes[0], keep=False)
    for block, following in zip(blocks[:-1], snakes[1:-1], strict=True):
        active = block(active, None, following)
    # bfloat16 would put a noise floor under quiet high frequencies, which the losses see but the served codec has not.
    with torch.autocast(x.device.type, enabled=False):
        return last(blocks[-1](active.float(), None, snake), None)[0][..., 0]


class _Fit:
    """A hook before a layer: rescales it so that its output has zero mean in each channel, and a set spread."""

    def __init__(self, spread: float) -> None:
        self.spread = spread

    @torch.no_grad()
    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        layer = module.conv if isinstance(module, _CONVOLUTIONS) else module
        assert isinstance(layer, nn.Conv1d | nn.ConvTranspose1d | nn.Linear)
        made = module.forward(*inputs)
        y = made[0] if isinstance(made, tuple) else made
        y = y.mT if isinstance(module, nn.Conv1d) else y  # a bare convolution has channels in the middle
        mean = y.mean((0, 1))
        scale = self.spread / (y - mean).square().mean().sqrt().clamp(min=1e-6)
        layer.weight.mul_(scale)
        if layer.bias is not None:
            layer.bias.copy_(-mean * scale)
