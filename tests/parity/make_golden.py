"""Makes golden/*.npz: what the official package computes from our tiny random checkpoints. See README.md."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent)]

from clips import reference_clip  # noqa: E402
from sonant.models.qwen3_tts.config import Kind  # noqa: E402
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint  # noqa: E402

KINDS: dict[str, Kind] = {"base": "base", "custom": "custom_voice", "design": "voice_design"}
ENGLISH, MIXED = "hello the world and speech, 1 2 3.", "你好，the quick brown fox."
CLONE_TEXT, DESIGN, STYLE = "the user and the world", "a warm user voice", "speak like the user"
GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 40}
CODEC_FRAMES = 120
# A full recording is 80 MB. These parts show where two implementations begin to differ, and fit in 3 MB.
KEPT_STEPS = {"talker_logits": 4, "pred_logits": 15}  # first steps of the talker; predictions of the first frame
KEPT_PREDICTIONS = {"cv_nonstream", "cv_dialect", "vd_nonstream", "vc_xvec", "vc_icl"}
VARIATIONS = {"cv_norep", "cv_strongrep", "cv_batch2"}  # of other cases, kept without sound and logits
# Random bits do not compress, so digits far below any tolerance are rounded off.
ROUNDING = {"wav": 2.0**-18, "talker_logits": 2.0**-16, "pred_logits": 2.0**-16}

Dump = dict[str, np.ndarray]


class Recorder:
    """Runs one case after the other, and keeps what tests compare."""

    def __init__(self, tts: Any) -> None:
        from official.tap import Tap

        self.tts = tts
        self.tap = Tap(tts.model)
        self.dump: Dump = {}

    def speak(self, case: str, call: Callable[..., tuple[Sequence[np.ndarray], int]], **options: Any) -> None:
        model, generate = self.tts.model, self.tts.model.generate
        returned: list[Any] = []

        def spy(*args: Any, **kwargs: Any) -> Any:
            returned.append(generate(*args, **kwargs))
            return returned[-1]

        model.generate = spy
        wavs, rate = call(**{**GREEDY, **options})
        model.generate = generate
        self.keep(case)
        codes = [c.cpu().numpy() for c in returned[0][0]]
        for i, (frames, wav) in enumerate(zip(codes, wavs, strict=True)):
            self.dump[f"{case}/codes{i}"] = frames
            if case not in VARIATIONS:
                self.dump[f"{case}/wav{i}"] = rounded(wav, "wav")
        print(f"{case:20s} frames {[len(c) for c in codes]}, {rate} Hz, peak {max(map(np.ptp, wavs)):.3f}")

    def keep(self, case: str) -> None:
        for name, value in self.tap.take().items():
            unwanted = name == "pred_logits" and case not in KEPT_PREDICTIONS
            if not unwanted and not (name == "talker_logits" and case in VARIATIONS):
                self.dump[f"{case}/{name}"] = rounded(value[: KEPT_STEPS.get(name)], name)

    def token_ids(self) -> None:
        tts = self.tts
        for text in (ENGLISH, MIXED):
            self.dump[f"ids/{text}"] = tts._tokenize_texts([tts._build_assistant_text(text)])[0].numpy()
        for text in (DESIGN, STYLE):
            self.dump[f"instruct_ids/{text}"] = tts._tokenize_texts([tts._build_instruct_text(text)])[0].numpy()
        self.dump[f"ref_ids/{CLONE_TEXT}"] = tts._tokenize_texts([tts._build_ref_text(CLONE_TEXT)])[0].numpy()


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    step = ROUNDING.get(name)
    return values if step is None else (np.round(values / step) * step).astype(np.float32)


def custom_voice(r: Recorder) -> None:
    ryan = partial(r.tts.generate_custom_voice, ENGLISH, speaker="Ryan", language="English")
    r.speak("cv_nonstream", ryan)
    r.speak("cv_stream_text", ryan, non_streaming_mode=False)
    r.speak("cv_norep", ryan, repetition_penalty=1.0)
    # The usual penalty changes none of these greedy choices; this one does.
    r.speak("cv_strongrep", ryan, non_streaming_mode=False, repetition_penalty=1.5)
    speak = r.tts.generate_custom_voice
    r.speak("cv_instruct", partial(speak, ENGLISH, speaker="Vivian", language="Auto", instruct=STYLE))
    r.speak("cv_dialect", partial(speak, MIXED, speaker="Eric", language="Chinese"))
    both = {"speaker": ["Ryan", "Dylan"], "language": ["English", "Auto"]}
    r.speak("cv_batch2", partial(speak, [ENGLISH, MIXED], **both))


def voice_design(r: Recorder) -> None:
    r.speak("vd_nonstream", partial(r.tts.generate_voice_design, ENGLISH, instruct=DESIGN, language="English"))
    r.speak("vd_noinstruct", partial(r.tts.generate_voice_design, MIXED, instruct="", language="Auto"))


def base(r: Recorder) -> None:
    prompts = {}
    for timbre_only in (True, False):
        text = None if timbre_only else CLONE_TEXT
        prompt = r.tts.create_voice_clone_prompt(reference_clip(), ref_text=text, x_vector_only_mode=timbre_only)
        case = f"prompt_xvec{int(timbre_only)}"
        r.keep(case)
        r.dump[f"{case}/ref_spk_embedding"] = prompt[0].ref_spk_embedding.float().numpy()
        if prompt[0].ref_code is not None:
            r.dump[f"{case}/ref_code"] = prompt[0].ref_code.numpy()
        prompts[timbre_only] = {"voice_clone_prompt": prompt}
    clone = r.tts.generate_voice_clone
    r.speak("vc_xvec", partial(clone, ENGLISH, language="English", **prompts[True]))
    r.speak("vc_icl", partial(clone, ENGLISH, language="English", **prompts[False]))
    r.speak(
        "vc_icl_nonstream",
        partial(clone, ENGLISH, language="Auto", non_streaming_mode=True, **prompts[False]),
    )
    r.speak("vc_icl_longtext", partial(clone, ENGLISH * 3, language="English", **prompts[False]))
    # Longer than any window of the tiny codec, and short enough for the official one-shot decode.
    codes = torch.randint(0, 2048, (640, 16), generator=torch.Generator().manual_seed(5))[:CODEC_FRAMES]
    wavs, _ = r.tts.model.speech_tokenizer.decode([{"audio_codes": codes}])
    r.dump["codec_long/codes0"], r.dump["codec_long/wav0"] = codes.numpy(), rounded(wavs[0], "wav")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qwen", type=Path, required=True, help="the unpacked qwen-tts 0.1.1 wheel")
    parser.add_argument("--out", type=Path, default=HERE / "golden")
    args = parser.parse_args()
    sys.path.insert(0, str(args.qwen))
    from official import stubs

    print("stubbed:", stubs.install())
    import transformers
    from qwen_tts import Qwen3TTSModel

    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "qwen-tts": "0.1.1"}
    for name, run in {"custom": custom_voice, "design": voice_design, "base": base}.items():
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder), kind=KINDS[name])
            tts = Qwen3TTSModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        recorder = Recorder(tts)
        run(recorder)
        recorder.token_ids()
        recorder.dump["meta"] = np.array(json.dumps(versions))
        np.savez_compressed(args.out / f"{name}.npz", **recorder.dump)


if __name__ == "__main__":
    main()
