"""config.json and generation_config.json of a Higgs Audio V2 folder, in either of its two published forms.

transformers' form is flat (`model_type` higgs_audio_v2). Boson's first one (`higgs_audio`) keeps Llama's values in
`text_config` and names the audio ones differently. Both describe the same arithmetic, even where their numbers for RoPE
differ. What the files decide has no default here: transformers' own class defaults are not the released values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonant.errors import BadSampling, CheckpointError
from sonant.layers.rope_scaling import Llama3Scaling
from sonant.models.higgs_audio_v2.knobs import KNOBS, with_defaults
from sonant.models.published import WHOLE_GROUPS, Published, Raw, Rule, agree, check, only, read_json
from sonant.sampling import Knob

CODEBOOKS = 8  # the delay pattern, the stop rule and the codec are built for this number
DELAY = CODEBOOKS - 1  # rows after the one of all BOS that complete no frame
_SPECIAL_CODES = 2  # BOS and EOS of a stream, after the codes
_LLAMA3 = "rope_type 'llama3' with its four numbers"


def _is_llama3(given: Any, _: Raw) -> bool:
    return isinstance(given, Mapping) and given.get("rope_type", given.get("type")) == "llama3"


_LLAMA = (
    only("attention_bias", False),
    only("mlp_bias", False),
    only("hidden_act", "silu"),
    Rule("rope_parameters", _LLAMA3, _is_llama3),
    Rule("rope_scaling", _LLAMA3, _is_llama3),
    Rule("head_dim", "an even number", lambda given, _: given % 2 == 0),
    WHOLE_GROUPS,
)
_FIRST_FORM = (
    only("audio_adapter_type", "dual_ffn_fast_forward"),
    only("audio_embed_avg", False),
    only("audio_decoder_proj_num_layers", 0),
    only("encode_audio_in_tokens", True),
    only("encode_whisper_embed", False),
    only("skip_audio_tower", True),
    only("use_audio_out_embed_projector", False),
    only("use_audio_out_self_attention", 0),
    only("use_delay_pattern", True),
    only("use_rq_transformer", False),
    only("audio_num_codebooks", CODEBOOKS),
)
_SECOND_FORM = (only("tie_word_embeddings", False), only("num_codebooks", CODEBOOKS))


@dataclass(frozen=True)
class LlamaConfig(Published):
    rules = _LLAMA

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True)
class _SecondForm(Published):
    """What transformers' form says of the audio side."""

    rules = _SECOND_FORM

    codebook_size: int  # including BOS and EOS
    audio_token_id: int
    audio_bos_token_id: int
    audio_delay_token_id: int
    audio_stream_bos_id: int
    audio_stream_eos_id: int


@dataclass(frozen=True)
class _FirstForm(Published):
    rules = _FIRST_FORM

    audio_codebook_size: int  # without BOS and EOS
    audio_out_token_idx: int
    audio_out_bos_token_id: int
    audio_stream_bos_id: int
    audio_stream_eos_id: int
    audio_ffn_hidden_size: int
    audio_ffn_intermediate_size: int
    audio_dual_ffn_layers: tuple[int, ...]


@dataclass(frozen=True)
class HiggsConfig:
    """All that the engine needs to know of the language model's side of a folder."""

    llama: LlamaConfig
    rope: Llama3Scaling
    codebook_size: int  # of one codebook's vocabulary: codes, then BOS and EOS of a stream
    audio_token_id: int  # stands in the text for a row of codes
    audio_bos_token_id: int
    audio_delay_token_id: int | None  # stands for the rows after the last frame; None: Boson's form does not say it
    stream_bos: int
    stream_eos: int
    knobs: tuple[Knob, ...]

    @property
    def codes(self) -> int:
        """How many codes a codebook has, without BOS and EOS."""
        return self.codebook_size - _SPECIAL_CODES

    @classmethod
    def read(cls, folder: Path) -> HiggsConfig:
        path = folder / "config.json"
        raw = read_json(path)
        knobs = _generation_defaults(folder / "generation_config.json")
        if "text_config" in raw:
            return cls._from_first_form(raw, str(path), knobs)
        audio = _SecondForm.from_dict(raw, str(path))
        config = cls(
            llama=LlamaConfig.from_dict(raw, str(path)),
            rope=_rope(raw, "rope_parameters", str(path)),
            codebook_size=audio.codebook_size,
            audio_token_id=audio.audio_token_id,
            audio_bos_token_id=audio.audio_bos_token_id,
            audio_delay_token_id=audio.audio_delay_token_id,
            stream_bos=audio.audio_stream_bos_id,
            stream_eos=audio.audio_stream_eos_id,
            knobs=knobs,
        )
        return config._checked(str(path))

    @classmethod
    def _from_first_form(cls, raw: Mapping[str, Any], where: str, knobs: tuple[Knob, ...]) -> HiggsConfig:
        audio, text = _FirstForm.from_dict(raw, where), raw["text_config"]
        if not isinstance(text, Mapping):
            raise CheckpointError(f"{where}: text_config should hold the language model's values")
        llama = LlamaConfig.from_dict(text, f"{where}: text_config")
        every = tuple(range(llama.num_hidden_layers))
        agree(
            where,
            ("audio_ffn_hidden_size", audio.audio_ffn_hidden_size, "hidden_size", llama.hidden_size),
            ("audio_ffn_intermediate_size", audio.audio_ffn_intermediate_size, "intermediate_size",
             llama.intermediate_size),
            ("audio_dual_ffn_layers", audio.audio_dual_ffn_layers, "all layers", every),
        )  # fmt: skip
        config = cls(
            llama=llama,
            rope=_rope(text, "rope_scaling", f"{where}: text_config"),
            codebook_size=audio.audio_codebook_size + _SPECIAL_CODES,
            audio_token_id=audio.audio_out_token_idx,
            audio_bos_token_id=audio.audio_out_bos_token_id,
            audio_delay_token_id=None,
            stream_bos=audio.audio_stream_bos_id,
            stream_eos=audio.audio_stream_eos_id,
            knobs=knobs,
        )
        return config._checked(where)

    def _checked(self, where: str) -> HiggsConfig:
        """Raise unless the two special codes come after all others: codes are clipped by that."""
        agree(
            where,
            ("audio_stream_bos_id", self.stream_bos, "the number of codes", self.codes),
            ("audio_stream_eos_id", self.stream_eos, "the number of codes and one", self.codes + 1),
        )
        return self


def _rope(raw: Raw, key: str, where: str) -> Llama3Scaling:
    given = raw.get(key)
    if not isinstance(given, Mapping):
        raise CheckpointError(f"{where} lacks {key!r}; Sonant supports only {_LLAMA3}")
    check(raw, (Rule(key, _LLAMA3, _is_llama3),), where)
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for name in names:
        if not isinstance(given.get(name), int | float) or isinstance(given[name], bool) or not given[name] > 0:
            raise CheckpointError(f"{where}: {key} lacks {name!r}, a number over 0")
    return Llama3Scaling(*(float(given[name]) for name in names))


def _generation_defaults(path: Path) -> tuple[Knob, ...]:
    if not path.exists():
        return KNOBS
    try:
        return with_defaults(read_json(path))
    except BadSampling as e:
        raise CheckpointError(f"{path}: {e}") from e
