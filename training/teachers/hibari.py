"""hibari-tts (Apache-2.0): one woman's voice, a hundred times real time on one CPU thread.

Its package is used as it is, but for the model file, which `carry` gave one more output: how long each phoneme
lasts. The phoneme labels of the corpus come from it.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np

from training.clip import Clip, labels_of, tidy

SPEAKER = "hibari_heart"
DURATIONS = "/Clip_output_0"  # the tensor inside the published model that `carry` exposes
_UNIT = 600  # samples of one duration unit: two of its frames


class HibariTeacher:
    def __init__(self, folder: Path) -> None:
        import onnxruntime

        sys.path.insert(0, str(folder / "python"))
        self.dsp = importlib.import_module("hibari.dsp")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(folder / "hibari.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.vocabulary: dict[str, int] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))

    def speak(self, phonemes: str, seed: int) -> Clip | None:
        ids = token_ids(phonemes, self.vocabulary)
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.ones(1, np.float32)}
        names = [o.name for o in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(names, inputs), strict=True))
        durations = outputs.pop(DURATIONS).reshape(-1).astype(np.int64)
        samples = self.dsp.synth(*(v[0] for v in outputs.values()), np.random.default_rng(seed))
        return tidy(samples, labels_of(label_ids(ids, self.vocabulary), durations, _UNIT, len(samples)))


def token_ids(phonemes: str, vocabulary: dict[str, int]) -> list[int]:
    return [0, *(vocabulary[c] for c in phonemes if c in vocabulary), 0]


def label_ids(ids: list[int], vocabulary: dict[str, int]) -> np.ndarray:
    """What is heard while a token lasts: a stress mark is the sound it stands before, punctuation is silence."""
    marks = {vocabulary[c] for c in "ˈˌ"}
    silent = {vocabulary[c] for c in ';:,.!?—…"()“” ' if c in vocabulary}
    heard = list(ids)
    for i in range(len(heard) - 2, -1, -1):
        heard[i] = heard[i + 1] if heard[i] in marks else 0 if heard[i] in silent else heard[i]
    return np.asarray(heard)
