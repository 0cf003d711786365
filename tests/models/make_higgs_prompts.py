"""Makes higgs_prompts.json: the model inputs that transformers' HiggsAudioV2Processor makes of requests of each kind.

    python tests/models/make_higgs_prompts.py --template CHAT_TEMPLATE.JINJA

with transformers 5.17, torch and torchaudio; the template is the published folder's, which we may not redistribute.
No codec is needed: the processor gets chosen codes for its clips.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import (  # noqa: E402
    DacFeatureExtractor,
    HiggsAudioV2Processor,
    HiggsAudioV2TokenizerModel,
    PreTrainedTokenizerFast,
)

from higgs_inputs import SPECIALS, codes_of, write_tokenizer  # noqa: E402

Message = dict[str, Any]
ROOM = "Audio is recorded from a quiet room."
DIALOGUE = (
    "You are an AI assistant designed to convert text into speech.\n"
    "If the user's message includes a [SPEAKER*] tag, do not read out the tag and generate speech for the following"
    " text, using the specified voice.\n"
    "If no speaker tag is present, select a suitable voice on your own."
)


class ChosenCodes(HiggsAudioV2TokenizerModel):
    """A codec that encodes a "clip" of 1,000 · seed + n samples as n frames of `codes_of`."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.config = SimpleNamespace(num_quantizers=8)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def encode(self, input_values: torch.Tensor, **_: Any) -> SimpleNamespace:
        seed, frames = divmod(input_values.shape[-1], 1000)
        return SimpleNamespace(audio_codes=torch.from_numpy(codes_of(seed, frames).T[None].astype(np.int64)))


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def audio(seed: int, frames: int) -> Message:
    return {"type": "audio", "audio": np.zeros(1000 * seed + frames, np.float32)}


def system(words: str = "Generate audio following instruction.") -> Message:
    return {"role": "system", "content": [text(words)]}


def scene(*content: Message) -> Message:
    return {"role": "scene", "content": list(content) or [text(ROOM)]}


def user(words: str) -> Message:
    return {"role": "user", "content": [text(words)]}


def assistant(seed: int, frames: int) -> Message:
    return {"role": "assistant", "content": [audio(seed, frames)]}


def voice(seed: int, frames: int, words: str | None = None) -> dict[str, Any]:
    return {"seed": seed, "frames": frames, "text": words}


# Name → the request to Sonant, and the same as a conversation for the official processor.
CASES: dict[str, tuple[dict[str, Any], list[Message]]] = {
    "plain": (
        {"text": "The sun rises in the east."},
        [system(), scene(), user("The sun rises in the east.")],
    ),
    "no scene": (
        {"text": "Hello world.", "instruct": " \n"},
        [system(), user("Hello world.")],
    ),
    "custom scene": (
        {"text": "Now, then!", "instruct": "\n A busy street.\n\nRain on the [roof].\n"},
        [system(), scene(text("A busy street.\n\nRain on the [roof].")), user("Now, then!")],
    ),
    "clone by turns": (
        {"text": "Say this in the same voice.", "voice": voice(1, 3, " It was the (night) before… \n")},
        [
            *(system(), scene(), user("It was the (night) before…"), assistant(1, 3)),
            user("Say this in the same voice."),
        ],
    ),
    "clone in the scene": (
        {"text": "Say this in the same voice.", "voice": voice(2, 1)},
        [system(), scene(text(ROOM), text("SPEAKER0:"), audio(2, 1)), user("Say this in the same voice.")],
    ),
    "two speakers by turns": (
        {
            "text": "[SPEAKER0] Hello there.\n[SPEAKER1] Hi!",
            "speakers": [voice(3, 2, "The first one"), voice(4, 12, "The second one")],
        },
        [
            *(system(), scene(), user("[SPEAKER0] The first one"), assistant(3, 2)),
            *(user("[SPEAKER1] The second one"), assistant(4, 12), user("[SPEAKER0] Hello there.\n[SPEAKER1] Hi!")),
        ],
    ),
    "a voice and a description in the scene": (
        {
            "text": "[SPEAKER1] First me. [SPEAKER0] Then me.",
            "speakers": [voice(5, 2, "Its text is of no use here."), "a deep voice,\n  from Texas"],
        },
        [
            *(system(), scene(text(ROOM), text("SPEAKER0:"), audio(5, 2), text("SPEAKER1: a deep voice, from Texas"))),
            user("[SPEAKER1] First me. [SPEAKER0] Then me."),
        ],
    ),
    "a description and two voices in the scene": (
        {"text": "[SPEAKER2] Me.", "speakers": ["feminine", voice(6, 1), voice(7, 2, "Yes.")], "instruct": "A bar."},
        [
            system(),
            scene(
                *(text("A bar."), text("SPEAKER0: feminine")),
                *(text("SPEAKER1:"), audio(6, 1), text("SPEAKER2:"), audio(7, 2)),
            ),
            user("[SPEAKER2] Me."),
        ],
    ),
    "descriptions without a scene": (
        {"text": "[SPEAKER0] Me. [SPEAKER1] You?", "speakers": ["feminine", "old, slow"], "instruct": ""},
        [
            *(system(), scene(text("SPEAKER0: feminine\nSPEAKER1: old, slow"))),
            user("[SPEAKER0] Me. [SPEAKER1] You?"),
        ],
    ),
    "made-up voices of a dialogue": (
        {"text": "[SPEAKER2] Two. [SPEAKER0] Nought. [SPEAKER2] Again. [SPEAKER5] And five."},
        [
            system(DIALOGUE),
            scene(text(ROOM), *(text(f"SPEAKER{k}: {v}ine") for k, v in ((0, "femin"), (2, "mascul"), (5, "femin")))),
            user("[SPEAKER2] Two. [SPEAKER0] Nought. [SPEAKER2] Again. [SPEAKER5] And five."),
        ],
    ),
    "made-up voices without a scene": (
        {"text": "[SPEAKER0] Yes. [SPEAKER1] No.", "instruct": ""},
        [
            *(system(DIALOGUE), scene(text("SPEAKER0: feminine\nSPEAKER1: masculine"))),
            user("[SPEAKER0] Yes. [SPEAKER1] No."),
        ],
    ),
    "two turns before": (
        {
            "text": "And so it ends",
            "voice": voice(8, 1, "A voice."),
            "context": [{**voice(9, 2), "text": "It begins  here"}, {**voice(10, 3), "text": "它继续。"}],
        },
        [
            *(system(), scene(), user("A voice."), assistant(8, 1), user("It begins here."), assistant(9, 2)),
            *(user("它继续."), assistant(10, 3), user("And so it ends.")),
        ],
    ),
    "Chinese and other scripts": (
        {"text": "你好，世界！“引号”（括号）——破折号…\n \n今天 25°C Grüße, 👋🏽 नमस्ते"},
        [
            *(system(), scene()),
            user('你好, 世界!"引号" 括号 --破折号...\n今天 25 degrees Celsius Grüße, 👋🏽 नमस्ते.'),
        ],
    ),
    "sounds": (
        {"text": "[laugh] Ha ha. [music start] La\n[sing start]la la[sing end][music end]  [humming start]"},
        [
            *(system(), scene()),
            user(
                "<SE>[Laughter]</SE> Ha ha. <SE_s>[Music]</SE_s> La\n<SE_s>[Singing]</SE_s>la la<SE_e>[Singing]</SE_e>"
                "<SE_e>[Music]</SE_e> <SE>[Humming]</SE>"
            ),
        ],
    ),
}


def processor(template: str, folder: Path) -> HiggsAudioV2Processor:
    path = write_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token=SPECIALS[0], eos_token=SPECIALS[1], pad_token=SPECIALS[1]
    )
    clips = DacFeatureExtractor(feature_size=1, hop_length=1, sampling_rate=24000)
    return HiggsAudioV2Processor(clips, tokenizer, ChosenCodes(), chat_template=template)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--template", type=Path, required=True)
    template = parser.parse_args().template.read_text(encoding="utf-8")
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        official = processor(template, Path(folder))
        for name, (request, conversation) in CASES.items():
            made = official.apply_chat_template(
                conversation, add_generation_prompt=True, tokenize=True, return_dict=True,
                processor_kwargs={"return_tensors": "pt", "sampling_rate": 24000},
            )  # fmt: skip
            rows = made["audio_input_ids"][0].tolist() if "audio_input_ids" in made else []
            cases.append({"name": name, "request": request, "ids": made["input_ids"][0].tolist(), "rows": rows})
            print(name, len(cases[-1]["ids"]), len(rows), repr(official.tokenizer.decode(cases[-1]["ids"])))
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    (HERE / "higgs_prompts.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
