"""The half of Qwen3-TTS that lays prompts out: it needs config files and tokenizer, neither weights nor torch."""

from __future__ import annotations

from pathlib import Path

from sonant.config import EngineConfig
from sonant.errors import BadText, ConfigError
from sonant.models.prompt import Prompt, seed_words
from sonant.models.prompt_check import check_finite, check_ids, check_prompt, misfit
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.knobs import staged_numbers, staged_values
from sonant.models.qwen3_tts.layout import TRAILING_TOKENS, Layout
from sonant.models.qwen3_tts.manifest import FRONT_ENDS, Manifest
from sonant.models.qwen3_tts.prompt import FAMILY, FrontEnd, PromptBuilder
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.models.speech_spec import Budget, SpeechSpec
from sonant.text.lexicon import Lexicon
from sonant.types import SpeechRequest

_BUDGET = Budget(base_s=4.0, s_per_token=0.96)


class Qwen3TTSPrompter:
    layout: type = Layout

    def __init__(
        self, config: Qwen3TTSConfig, builder: PromptBuilder, budget: Budget, segment_chars: int | None = None
    ) -> None:
        self.config, self.builder, self.budget = config, builder, budget
        self.spec = _spec(config, builder, segment_chars)

    def prompt(self, request: SpeechRequest) -> Prompt:
        layout = self.builder.layout(request)
        if len(layout.trailing) > TRAILING_TOKENS:
            raise BadText(
                f"the text has {len(layout.trailing)} tokens, over {TRAILING_TOKENS} for one utterance; "
                "split it at sentence ends"
            )
        budget = self.budget.frames(layout.spoken_tokens, self.spec.frame_s)
        max_frames = min(budget, self.config.max_new_tokens - 1) if request.max_frames is None else request.max_frames
        staged = staged_values(self.spec.knobs, request.sampling)
        staged |= {"seed": seed_words(request.seed or 0), "frame_limit": max_frames}
        staged["trailing_length"] = len(layout.trailing)
        return Prompt(length=len(layout.text), keys=layout.keys(), staged=staged, max_frames=max_frames, payload=layout)

    def check(self, prompt: Prompt) -> None:
        layout, talker = prompt.payload, self.config.talker
        if not isinstance(layout, Layout):
            raise misfit(f"its payload is a {type(layout).__name__}")
        if layout.codes.shape[1] != talker.num_code_groups or len(layout.trailing) > TRAILING_TOKENS:
            raise misfit(f"it has {layout.codes.shape[1]} codebooks and {len(layout.trailing)} tokens after it")
        lengths = {"frame_limit": prompt.max_frames, "trailing_length": len(layout.trailing)}
        check_prompt(self, prompt, len(layout.text), layout.key_width, **lengths)
        codes = self.config.predictor.vocab_size
        check_ids("text", layout.text, -1, talker.text_vocab_size)
        check_ids("trailing text", layout.trailing, 0, talker.text_vocab_size)
        check_ids("first codes", layout.codes[:, 0], -1, talker.vocab_size)
        check_ids("codes", layout.codes[:, 1:], -1, codes)
        if layout.preroll is not None:
            check_ids("preroll", layout.preroll, 0, codes)
        if layout.speaker is not None:
            if layout.speaker.shape != (talker.hidden_size,):
                raise misfit(f"speaker has {len(layout.speaker)} numbers and not {talker.hidden_size}")
            check_finite("speaker", layout.speaker)


def _spec(config: Qwen3TTSConfig, builder: PromptBuilder, segment_chars: int | None) -> SpeechSpec:
    clones = config.speaker is not None
    return SpeechSpec(
        family=FAMILY,
        sample_rate=config.codec.sample_rate,
        clip_sample_rate=config.codec.sample_rate,
        samples_per_frame=config.codec.samples_per_frame,
        frame_shape=(config.talker.num_code_groups,),
        frame_dtype="int32",
        max_positions=config.talker.max_position_embeddings,
        staged_numbers=staged_numbers(config.knobs),
        knobs=config.knobs,
        voices=builder.voices,
        languages=builder.languages,
        clones=clones,
        voice_vector="embedding" if clones else None,
        speaks_without_voice=config.kind != "base",
        instructs=config.instructs,
        segment_chars=segment_chars,
    )


def load_prompter(folder: Path, options: EngineConfig, *, read_now: bool = True) -> Qwen3TTSPrompter:
    """Without `read_now` its tokenizer's vocabulary is read when it is first needed."""
    if options.codec is not None:
        raise ConfigError("this model's codec is in its own folder; leave --codec out, and SONANT_CODEC")
    config, manifest = Qwen3TTSConfig.read(folder), Manifest.read(folder)
    tokenizer = TextTokenizer(folder, read_now=read_now, most=config.talker.text_vocab_size)
    builder = PromptBuilder(config, tokenizer, _front_end(folder, manifest))
    frame_s = config.codec.samples_per_frame / config.codec.sample_rate
    return Qwen3TTSPrompter(config, builder, _budget(options, manifest, frame_s), manifest.segment_chars)


def _front_end(folder: Path, manifest: Manifest) -> FrontEnd | None:
    if manifest.text_front_end is None:
        return None
    normalize = FRONT_ENDS[manifest.text_front_end]
    if manifest.lexicon is None:
        return normalize
    lexicon = Lexicon.read(folder / manifest.lexicon)
    return lambda text: lexicon.pronounce(normalize(text))


def _budget(options: EngineConfig, manifest: Manifest, frame_s: float) -> Budget:
    budget = _BUDGET.with_options(options)
    if manifest.frames_per_token is None:
        return budget
    return Budget(budget.base_s, min(budget.s_per_token, manifest.frames_per_token * frame_s))
