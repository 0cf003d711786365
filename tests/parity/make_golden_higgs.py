"""Makes golden/higgs*.npz: what transformers computes from our tiny random checkpoint. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers loads

import numpy as np
import torch
import transformers
from transformers import (
    AutoTokenizer,
    DacFeatureExtractor,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2Processor,
    HiggsAudioV2TokenizerModel,
)

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent)]

from parity.higgs_cases import CASES, CLIPS, Clip, HiggsCase  # noqa: E402
from sonant.models.higgs_audio_v2.synthetic import write_checkpoint  # noqa: E402

RATE = 24000
SYSTEM = "Generate audio following instruction."
SYSTEM_OF_DIALOGUE = (  # Boson's, for speakers without clip or description
    "You are an AI assistant designed to convert text into speech.\n"
    "If the user's message includes a [SPEAKER*] tag, do not read out the tag and generate speech for the following "
    "text, using the specified voice.\n"
    "If no speaker tag is present, select a suitable voice on your own."
)
SCENE = "Audio is recorded from a quiet room."
CODEC_FRAMES = 60
KEPT_STEPS = range(1, 5)  # the first step's logits have no effect: its row is always all BOS
KEPT_LOGITS = {"plain", "clone", "speakers_scene", "long_clone"}
KEPT_SOUND = {"plain", "clone", "smart", "capped"}
FORCED = "clone_scene"  # the logits of every step are kept
# Random bits do not compress, so digits far below any tolerance are rounded off.
WAV_STEP, LOGITS_STEP, FORCED_STEP = 2.0**-18, 2.0**-16, 2.0**-9

Json = dict[str, Any]
Dump = dict[str, np.ndarray]


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def audio(clip: Clip) -> Json:
    return {"type": "audio", "audio": clip.samples()}


def turn(role: str, *content: Json) -> Json:
    return {"role": role, "content": list(content)}


def conversation(case: HiggsCase) -> list[Json]:
    """The request as the messages that a user of transformers would write."""
    cast = (case.voice,) if case.voice else case.speakers
    by_turns = all(isinstance(one, Clip) and one.words for one in cast)
    makes_up_voices = not cast and "[SPEAKER1]" in case.text
    described: list[Json] = []
    if makes_up_voices:
        described = [text("SPEAKER0: feminine"), text("SPEAKER1: masculine")]
    elif not by_turns:
        for k, one in enumerate(cast):
            described += [text(f"SPEAKER{k}: {one}")] if isinstance(one, str) else [text(f"SPEAKER{k}:"), audio(one)]
    scene = SCENE if case.instruct is None else case.instruct
    messages = [turn("system", text(SYSTEM_OF_DIALOGUE if makes_up_voices else SYSTEM))]
    if scene or described:
        messages.append(turn("scene", text(scene), *described))
    for k, one in enumerate(cast if by_turns else ()):
        words = f"[SPEAKER{k}] {one.words}" if len(cast) > 1 else one.words
        messages += [turn("user", text(words)), turn("assistant", audio(one))]
    for words, clip in case.context:
        messages += [turn("user", text(words)), turn("assistant", audio(clip))]
    return [*messages, turn("user", text(case.text))]


class Official:
    """transformers' own model, codec and processor, loaded from one of our folders."""

    def __init__(self, folder: Path) -> None:
        self.model = HiggsAudioV2ForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
        self.codec = HiggsAudioV2TokenizerModel.from_pretrained(folder / "audio_tokenizer").eval()
        self.processor = HiggsAudioV2Processor(
            feature_extractor=DacFeatureExtractor(feature_size=1, hop_length=1, sampling_rate=RATE),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            audio_tokenizer=self.codec,
            chat_template=(HERE / "official" / "higgs_chat_template.jinja").read_text(encoding="utf-8"),
        )
        settings = self.model.generation_config
        settings.do_sample = False
        settings.temperature = settings.top_k = settings.top_p = None
        # Greedy is not enough: RAS draws at random whenever these are set.
        settings.ras_win_len = settings.ras_win_max_num_repeat = None

    def prompt(self, case: HiggsCase) -> Any:
        options = {"return_tensors": "pt", "sampling_rate": RATE}
        return self.processor.apply_chat_template(
            conversation(case), add_generation_prompt=True, tokenize=True, return_dict=True, processor_kwargs=options
        )

    def speak(self, case: HiggsCase) -> tuple[Dump, float]:
        """What tests compare, and the least lead of a likeliest code over the second."""
        prompt = self.prompt(case)
        told = self.model.generate(
            **prompt,
            max_new_tokens=case.max_rows,
            return_dict_in_generate=True,
            output_logits=True,
            output_scores=True,
            output_hidden_states=True,
        )
        known = prompt["audio_input_ids"][0] if "audio_input_ids" in prompt else torch.zeros(0, 8, dtype=torch.long)
        rows = told.audio_sequences[0, len(known) :]
        end = len(rows) - 1 if bool((rows[-1] == 1025).all()) else len(rows)
        codes = self.processor.revert_delay_pattern(rows[1:end]).clip(0, 1023)
        wav = self.processor.batch_decode(told.audio_sequences)[0]
        logits = torch.cat(told.logits)
        best = torch.stack([scores[0].topk(2, -1).values for scores in told.scores])
        lead = best[..., 0] - best[..., 1]
        hidden = torch.stack([step[-1][0, -1] for step in told.hidden_states])
        dump = {
            "input_ids": prompt["input_ids"][0].numpy().astype(np.int32),
            "prompt_rows": known.numpy().astype(np.int16),
            "rows": rows.numpy().astype(np.int16),
            "codes": codes.numpy().astype(np.int16),
            "hidden": hidden[[0, *KEPT_STEPS]].numpy(),
        }
        if case.name in KEPT_LOGITS:
            dump["logits"] = rounded(logits[list(KEPT_STEPS)].numpy(), LOGITS_STEP)
        if case.name in KEPT_SOUND:
            dump["wav"] = rounded(wav.numpy(), WAV_STEP)
        if case.name == FORCED:
            dump["forced_logits"] = rounded(logits[1:].numpy(), FORCED_STEP).astype(np.float16)
        return dump, float(lead[torch.isfinite(lead)].min())

    def encode(self, clip: Clip) -> Dump:
        """A clip's codes, and the features that they are made from."""
        held: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Any:
            return lambda module, inputs, output: held.__setitem__(name, output)

        parts = {"acoustic": self.codec.acoustic_encoder, "semantic": self.codec.encoder_semantic, "fc": self.codec.fc}
        hooks = [part.register_forward_hook(keep(name)) for name, part in parts.items()]
        codes = self.codec.encode(torch.from_numpy(clip.samples())[None, None]).audio_codes
        for hook in hooks:
            hook.remove()
        features = {name: value[0].numpy() for name, value in held.items()}
        return {"codes": codes[0].T.numpy().astype(np.int16), **features}


def rounded(values: np.ndarray, step: float) -> np.ndarray:
    return (np.round(values / step) * step).astype(np.float32)


@torch.no_grad()
def record(official: Official) -> tuple[Dump, Dump]:
    cases: Dump = {}
    codec: Dump = {}
    for case in CASES:
        told, lead = official.speak(case)
        cases |= {f"{case.name}/{name}": value for name, value in told.items()}
        ended = "stopped" if (told["rows"][-1] == 1025).all() else "capped"
        sizes = f"{len(told['input_ids'])} positions, {len(told['rows'])} rows, {ended}"
        print(f"{case.name:16s} {sizes}, likeliest codes ahead by at least {lead:.1e}")
    for clip in CLIPS:
        told = official.encode(clip)
        whole = clip == CLIPS[0]  # one clip's features are enough to show where two implementations begin to differ
        codec |= {f"{clip.name}/{name}": value for name, value in told.items() if whole or name == "codes"}
    codes = torch.randint(0, 1024, (1, 8, CODEC_FRAMES), generator=torch.Generator().manual_seed(5))
    wav = official.codec.decode(codes).audio_values[0, 0]
    codec["random/codes"] = codes[0].T.numpy().astype(np.int16)
    codec["random/wav"] = rounded(wav.numpy(), WAV_STEP)
    print(f"sound: deviation {wav.std():.3f}, peak {wav.abs().max():.3f}")
    return cases, codec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        cases, codec = record(Official(Path(folder)))
    meta = np.array(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}))
    forced = {name: cases.pop(name) for name in list(cases) if name.endswith("/forced_logits")}
    for name, dump in {"higgs": cases, "higgs_forced": forced, "higgs_codec": codec}.items():
        np.savez_compressed(args.out / f"{name}.npz", meta=meta, **dump)


if __name__ == "__main__":
    main()
