"""config.json of Higgs Audio V2's codec, in either of its two published forms.

transformers' form (`model_type` higgs_audio_v2_tokenizer) describes the DAC (acoustic) and the HuBERT (semantic) model
in objects of their own. Boson's first form is a flat list of numbers; the two models' sizes are fixed in its code. An
absent key stands for transformers' default in the one, and for Boson's in the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.config import CODEBOOKS
from sonant.models.published import Published, Raw, Rule, agree, at_least_one, only, read_json

_CODES = 1024
_SAMPLE_RATE = 24_000
_SAMPLES_PER_FRAME = 960
_MODEL_TYPE = "higgs_audio_v2_tokenizer"


def _whole(low: int) -> Any:
    return lambda given, _: bool(given) and all(isinstance(n, int) and n >= low for n in given)


def _divides_hidden_size(given: Any, raw: Raw) -> bool:
    size = raw.get("hidden_size")
    return given > 0 and (SemanticConfig.hidden_size if size is None else size) % given == 0


def _as_many_as_conv_dim(given: Any, raw: Raw) -> bool:
    dims = raw.get("conv_dim")
    return len(given) == len(SemanticConfig.conv_dim if dims is None else dims)


@dataclass(frozen=True)
class AcousticConfig(Published):
    """A DAC encoder and decoder, whose channels double and halve with every ratio."""

    rules = (
        only("model_type", "dac"),
        Rule("downsampling_ratios", "whole numbers of at least 2", _whole(2)),
        Rule("upsampling_ratios", "whole numbers of at least 2", _whole(2)),
    )

    encoder_hidden_size: int = 64
    decoder_hidden_size: int = 1024
    hidden_size: int = 256
    downsampling_ratios: tuple[int, ...] = (8, 5, 4, 2)
    upsampling_ratios: tuple[int, ...] = (8, 5, 4, 2)


@dataclass(frozen=True)
class SemanticConfig(Published):
    """A HuBERT; the defaults are the base size, as transformers' are."""

    rules = (
        only("model_type", "hubert"),
        only("conv_bias", False),
        only("conv_pos_batch_norm", False),
        only("do_stable_layer_norm", False),
        only("feat_extract_activation", "gelu"),
        only("feat_extract_norm", "group"),
        only("feat_proj_layer_norm", True),
        only("hidden_act", "gelu"),
        Rule("num_attention_heads", "a divisor of hidden_size", _divides_hidden_size),
        Rule("num_conv_pos_embedding_groups", "a divisor of hidden_size", _divides_hidden_size),
        Rule("conv_kernel", "as many numbers as conv_dim has", _as_many_as_conv_dim),
        Rule("conv_stride", "as many numbers as conv_dim has", _as_many_as_conv_dim),
    )

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    layer_norm_eps: float = 1e-5
    conv_dim: tuple[int, ...] = (512,) * 7
    conv_kernel: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_stride: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    num_conv_pos_embeddings: int = 128
    num_conv_pos_embedding_groups: int = 16


_ODD = "an odd number"
_ONES = "1 for each block"


def _odd(given: Any, _: Raw) -> bool:
    return bool(given % 2 == 1)


def _ones(given: Any, _: Raw) -> bool:
    return isinstance(given, list) and all(n == 1 for n in given)


@dataclass(frozen=True)
class _SecondForm(Published):
    rules = (
        only("model_type", _MODEL_TYPE),
        Rule("target_bandwidths", "a list that is not empty", lambda given, _: len(given) > 0),
        Rule("kernel_size", _ODD, _odd),
        Rule("unit_kernel_size", _ODD, _odd),
        Rule("strides", _ONES, _ones),
        Rule("channel_ratios", _ONES, _ones),
        at_least_one("sample_rate"),
    )

    target_bandwidths: tuple[float, ...] = (0.5, 1, 1.5, 2, 4)  # kbit/s; the last one gives the number of quantizers
    sample_rate: int = _SAMPLE_RATE
    semantic_sample_rate: int = 16_000
    downsample_factor: int = 320
    codebook_size: int = _CODES
    codebook_dim: int = 64
    kernel_size: int = 3
    unit_kernel_size: int = 3
    block_dilations: tuple[int, ...] = (1, 1)
    strides: tuple[int, ...] = (1, 1)
    acoustic_model_config: dict[str, Any] = field(default_factory=dict)
    semantic_model_config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _FirstForm(Published):
    rules = (
        only("n_filters", 32),  # Boson's code fixes the DAC's sizes whatever this says; others mean another codec
        only("semantic_techer", "hubert_base_general"),
        only("causal", False),
        only("downsample_mode", "step_down"),
        only("merge_mode", "concat"),
        only("normalize", False),
        only("semantic_mode", "classic"),
        only("semantic_sample_rate", 16_000),
        only("vq_scale", 1),
        Rule("ratios", "whole numbers of at least 2", _whole(2)),
    )

    D: int
    codebook_dim: int
    ratios: tuple[int, ...]
    sample_rate: int
    bins: int
    n_q: int
    # The published file lacks both: Boson's code fixes these sizes. A tiny codec has to state its own.
    acoustic_model_config: dict[str, Any] = field(default_factory=dict)
    semantic_model_config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CodecConfig:
    acoustic: AcousticConfig
    semantic: SemanticConfig
    num_quantizers: int
    codebook_size: int
    codebook_dim: int
    sample_rate: int = _SAMPLE_RATE
    semantic_sample_rate: int = 16_000
    kernel_size: int = 3  # of the semantic encoder's convolutions
    unit_kernel_size: int = 3
    block_dilations: tuple[int, ...] = (1, 1)
    blocks: int = 2

    @property
    def hidden_size(self) -> int:
        """Width of what is quantised: acoustic and semantic features side by side."""
        return self.acoustic.hidden_size + self.semantic.hidden_size

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.acoustic.upsampling_ratios)

    @property
    def semantic_step(self) -> int:
        """The stride with which HuBERT's frames are taken, so that there are as many as acoustic ones."""
        samples = self.samples_per_frame * self.semantic_sample_rate // self.sample_rate
        return max(1, samples // math.prod(self.semantic.conv_stride))

    @classmethod
    def read(cls, path: Path) -> CodecConfig:
        """`path` is the config.json."""
        raw, where = read_json(path), str(path)
        first_form = "model_type" not in raw and "ratios" in raw
        config = cls._from_first_form(raw, where) if first_form else cls._from_second_form(raw, where)
        config._check(where)
        return config

    @classmethod
    def _from_second_form(cls, raw: Raw, where: str) -> CodecConfig:
        if raw.get("model_type") != _MODEL_TYPE:
            given = raw.get("model_type")
            raise CheckpointError(
                f"{where}: model_type is {given!r}; the codec of Higgs Audio V2 is {_MODEL_TYPE!r}: "
                "name its own folder, not the language model's"
            )
        form = _SecondForm.from_dict(raw, where)
        acoustic = AcousticConfig.from_dict(form.acoustic_model_config, f"{where}: acoustic_model_config")
        semantic = SemanticConfig.from_dict(form.semantic_model_config, f"{where}: semantic_model_config")
        agree(
            where,
            ("downsample_factor", form.downsample_factor, "HuBERT's strides together", math.prod(semantic.conv_stride)),
        )
        frame_rate = math.ceil(form.sample_rate / math.prod(acoustic.downsampling_ratios))
        bits = math.ceil(math.log2(max(2, form.codebook_size)))
        return cls(
            acoustic=acoustic,
            semantic=semantic,
            num_quantizers=int(1000 * form.target_bandwidths[-1] // (frame_rate * bits)),
            codebook_size=form.codebook_size,
            codebook_dim=form.codebook_dim,
            sample_rate=form.sample_rate,
            semantic_sample_rate=form.semantic_sample_rate,
            kernel_size=form.kernel_size,
            unit_kernel_size=form.unit_kernel_size,
            block_dilations=form.block_dilations,
            blocks=len(form.strides),
        )

    @classmethod
    def _from_first_form(cls, raw: Raw, where: str) -> CodecConfig:
        form = _FirstForm.from_dict(raw, where)
        ratios = {"downsampling_ratios": list(form.ratios), "upsampling_ratios": list(form.ratios)}
        sizes = {"hidden_size": form.D, **ratios, **form.acoustic_model_config}
        acoustic = AcousticConfig.from_dict(sizes, f"{where}: acoustic_model_config")
        agree(where, ("D", form.D, "acoustic_model_config.hidden_size", acoustic.hidden_size))
        return cls(
            acoustic=acoustic,
            semantic=SemanticConfig.from_dict(form.semantic_model_config, f"{where}: semantic_model_config"),
            num_quantizers=form.n_q,
            codebook_size=form.bins,
            codebook_dim=form.codebook_dim,
            sample_rate=form.sample_rate,
        )

    def _check(self, where: str) -> None:
        """Raise unless it is the codec that the language model speaks. Other versions' have the same classes and other
        numbers."""
        down = math.prod(self.acoustic.downsampling_ratios)
        agree(where, ("the downsampling ratios' product", down, "the upsampling ratios'", self.samples_per_frame))
        found = self.num_quantizers, self.codebook_size, self.samples_per_frame, self.sample_rate
        if found != (CODEBOOKS, _CODES, _SAMPLES_PER_FRAME, _SAMPLE_RATE):
            raise CheckpointError(
                f"{where} is a codec of {found[0]} codebooks with {found[1]} codes and frames of {found[2]} samples at "
                f"{found[3]} Hz; Higgs Audio V2 speaks {CODEBOOKS} with {_CODES}, frames of {_SAMPLES_PER_FRAME} at "
                f"{_SAMPLE_RATE} Hz: fetch the codec that was published for it"
            )
