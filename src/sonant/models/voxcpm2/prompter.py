"""The half of VoxCPM2 that lays prompts out: it needs config file and tokenizer, neither weights nor torch."""

from __future__ import annotations

from pathlib import Path

from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.models.prompt import Prompt, seed_words
from sonant.models.prompt_check import check_finite, check_ids, check_prompt, misfit
from sonant.models.speech_spec import Budget, SpeechSpec
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.knobs import FLOW_STEPS, KNOBS, STAGED_NUMBERS, staged_values
from sonant.models.voxcpm2.layout import Layout
from sonant.models.voxcpm2.prompt import FAMILY, PromptBuilder
from sonant.models.voxcpm2.tokenizer import TextTokenizer
from sonant.models.voxcpm2.vae_config import VAEConfig
from sonant.sampling import resolve
from sonant.types import SpeechRequest

_BUDGET = Budget(base_s=1.6, s_per_token=0.96)  # ten patches, and six for each token
_FULL_BATCH = 256  # a row is 22 tokens in the flow's products: those of 64 rows are compute-bound already
_MOST_FRAMES = 4096  # these three are the official package's own
_BAD_FRAMES_PER_TOKEN = 6
_MOST_TRIES = 3


class VoxCPM2Prompter:
    layout: type = Layout

    def __init__(self, config: VoxCPM2Config, vae: VAEConfig, builder: PromptBuilder, budget: Budget) -> None:
        self.config, self.builder, self.budget = config, builder, budget
        self.spec = _spec(config, vae)

    def prompt(self, request: SpeechRequest) -> Prompt:
        knobs = resolve(KNOBS, request.sampling)
        layout = self.builder.layout(request, reference=bool(knobs["reference"]))
        budget = min(self.budget.frames(layout.spoken_tokens, self.spec.frame_s), _MOST_FRAMES)
        max_frames = budget if request.max_frames is None else request.max_frames
        staged = staged_values(knobs)
        staged |= {"seed": seed_words(request.seed or 0), "frame_limit": max_frames}
        return Prompt(
            length=len(layout.text),
            keys=layout.keys(),
            staged=staged,
            max_frames=max_frames,
            payload=layout,
            variant=int(knobs["inference_timesteps"]),
            bad_from=_BAD_FRAMES_PER_TOKEN * layout.spoken_tokens if knobs["retry_badcase"] else None,
            retries=tuple({"seed": seed_words(((request.seed or 0) + n) % 2**64)} for n in range(1, _MOST_TRIES)),
        )

    def check(self, prompt: Prompt) -> None:
        layout = prompt.payload
        if not isinstance(layout, Layout):
            raise misfit(f"its payload is a {type(layout).__name__}")
        if layout.patches.shape[1:] != self.spec.frame_shape:
            raise misfit(f"its patches are {list(layout.patches.shape[1:])} and not {list(self.spec.frame_shape)}")
        check_prompt(self, prompt, len(layout.text), layout.key_width, frame_limit=prompt.max_frames)
        check_ids("text", layout.text, 0, self.config.lm.vocab_size)
        if layout.audio.any():  # if no position is a patch, nothing reads them
            check_finite("patches", layout.patches)
        check_finite("primer", layout.primer)


def _spec(config: VoxCPM2Config, vae: VAEConfig) -> SpeechSpec:
    return SpeechSpec(
        family=FAMILY,
        sample_rate=vae.out_sample_rate,
        clip_sample_rate=vae.sample_rate,
        samples_per_frame=config.patch_size * vae.samples_per_latent,
        frame_shape=(config.patch_size, config.feat_dim),
        frame_dtype="float32",
        max_positions=config.max_positions,
        staged_numbers=STAGED_NUMBERS,
        variants=FLOW_STEPS,
        full_batch=_FULL_BATCH,
        knobs=KNOBS,
        languages=PromptBuilder.languages,
        clones=True,
        speaks_without_voice=True,
        instructs=True,
    )


def load_prompter(folder: Path, options: EngineConfig) -> VoxCPM2Prompter:
    if options.codec is not None:
        raise ConfigError("this model's codec is in its own folder; leave --codec out")
    config = VoxCPM2Config.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder))
    vae = VAEConfig.from_dict(config.vae, f"{folder / 'config.json'}: audio_vae_config")
    return VoxCPM2Prompter(config, vae, builder, _BUDGET.with_options(options))
