"""The half of Higgs Audio V2 that lays prompts out: it needs config files and tokenizer, neither weights nor torch."""

from __future__ import annotations

from pathlib import Path

from sonant.config import EngineConfig
from sonant.models.higgs_audio_v2.codec_config import CodecConfig
from sonant.models.higgs_audio_v2.codec_place import codec_place, read_codec_config
from sonant.models.higgs_audio_v2.config import CODEBOOKS, DELAY, HiggsConfig
from sonant.models.higgs_audio_v2.knobs import staged_numbers, staged_values
from sonant.models.higgs_audio_v2.layout import Layout
from sonant.models.higgs_audio_v2.prompt import FAMILY, PromptBuilder
from sonant.models.higgs_audio_v2.spoken_text import MOST_SPEAKERS
from sonant.models.higgs_audio_v2.tokenizer import TextTokenizer
from sonant.models.prompt import Prompt, seed_words
from sonant.models.prompt_check import check_ids, check_prompt, misfit
from sonant.models.speech_spec import Budget, SpeechSpec
from sonant.types import SpeechRequest

MAX_POSITIONS = 8192  # as in Boson's own largest cache; the numbers in the published files belong to their RoPE
_MOST_FRAMES = 2048  # in one utterance, as in Boson's script
_CONTEXT_SEGMENTS = 2  # of a long text, as in Boson's examples
_BUDGET = Budget(base_s=4.0, s_per_token=0.96)


class HiggsPrompter:
    layout: type = Layout

    def __init__(self, config: HiggsConfig, codec: CodecConfig, builder: PromptBuilder, budget: Budget) -> None:
        self.config, self.builder, self.budget = config, builder, budget
        self.spec = _spec(config, codec)

    def prompt(self, request: SpeechRequest) -> Prompt:
        layout = self.builder.layout(request)
        budget = self.budget.frames(layout.spoken_tokens, self.spec.frame_s)
        max_frames = min(budget, _MOST_FRAMES) if request.max_frames is None else request.max_frames
        staged = staged_values(self.spec.knobs, request.sampling)
        staged |= {"seed": seed_words(request.seed or 0), "frame_limit": max_frames}
        return Prompt(length=len(layout.text), keys=layout.keys(), staged=staged, max_frames=max_frames, payload=layout)

    def check(self, prompt: Prompt) -> None:
        layout = prompt.payload
        if not isinstance(layout, Layout):
            raise misfit(f"its payload is a {type(layout).__name__}")
        check_prompt(self, prompt, len(layout.text), layout.key_width, frame_limit=prompt.max_frames)
        check_ids("text", layout.text, 0, self.config.llama.vocab_size)
        check_ids("codes", layout.codes, -1, self.config.codebook_size)
        audio = layout.audio()
        if not audio[-1] or ((layout.codes >= 0) != audio[:, None]).any():
            raise misfit("a position is text, or has a code of each codebook, as the last one must")


def _spec(config: HiggsConfig, codec: CodecConfig) -> SpeechSpec:
    return SpeechSpec(
        family=FAMILY,
        sample_rate=codec.sample_rate,
        clip_sample_rate=codec.sample_rate,
        samples_per_frame=codec.samples_per_frame,
        frame_shape=(CODEBOOKS,),
        frame_dtype="int32",
        max_positions=MAX_POSITIONS,
        staged_numbers=staged_numbers(config.knobs),
        delay_steps=DELAY,
        knobs=config.knobs,
        languages=PromptBuilder.languages,
        clones=True,
        speaks_without_voice=True,
        instructs=True,
        most_speakers=MOST_SPEAKERS,
        context_segments=_CONTEXT_SEGMENTS,
    )


def load_prompter(folder: Path, options: EngineConfig) -> HiggsPrompter:
    config = HiggsConfig.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder))
    codec = read_codec_config(codec_place(folder, options.codec))
    return HiggsPrompter(config, codec, builder, _BUDGET.with_options(options))
