"""Judges for the quality test: speech recognisers, MOS predictors and speaker encoders that others have trained.

None of them is a dependency. Those that are given or installed are used; the others are left out, and the result says
so. All take mono float32 at 16 kHz.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sonant.bench.quality.ggml import is_ggml, read_ggml
from sonant.errors import ConfigError
from sonant.types import Samples

RATE_HZ = 16_000
_CODES = {"english": "en", "spanish": "es", "chinese": "zh"}
_PACKAGE = "package:"
_WINDOW_S = 30  # the most that Whisper takes at once

Transcribe = Callable[[Samples, str], str]  # (sound, language) → words
Rate = Callable[[Samples], float]
Embed = Callable[[Samples], Samples]  # a unit vector for a voice


@dataclass(frozen=True)
class Judges:
    transcribe: Transcribe | None = None
    mos: Rate | None = None
    embed: Embed | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def open(cls, asr: str | None, speaker: Path | None) -> Judges:
        transcribe, asr_name = (None, "") if asr is None else open_transcriber(asr)
        mos = _distillmos()
        embed, speaker_name = _speaker_encoder(speaker)
        names = (asr_name, "DistillMOS" if mos else "", speaker_name)
        return cls(transcribe, mos, embed, tuple(n for n in names if n))


def open_transcriber(where: str) -> tuple[Transcribe, str]:
    """A Whisper checkpoint in any of its four layouts: a path, or `package:NAME/inner/path` of an installed one."""
    path = _locate(where)
    if path.is_file() and (path.suffix == ".pt" or is_ggml(path)):
        return _openai_whisper(path), f"openai-whisper {path.name}"
    if (path / "model.bin").is_file() and (path / "config.json").is_file():
        return _faster_whisper(path), f"faster-whisper {path.name}"
    if (path / "config.json").is_file():
        return _transformers_whisper(path), f"transformers {path.name}"
    inside = sorted(path.rglob("*.pt")) if path.is_dir() else []
    if len(inside) == 1:
        return _openai_whisper(inside[0]), f"openai-whisper {inside[0].name}"
    raise ConfigError(
        f"--asr {where}: no Whisper checkpoint there; give a .pt file of openai-whisper, a ggml file of whisper.cpp, "
        "or a folder with config.json and either model.bin (faster-whisper) or model.safetensors (transformers)"
    )


def _locate(where: str) -> Path:
    if not where.startswith(_PACKAGE):
        path = Path(where)
        if not path.exists():
            raise ConfigError(f"--asr {where}: there is no such file or folder")
        return path
    name, _, inner = where.removeprefix(_PACKAGE).partition("/")
    try:
        root = Path(str(files(name))) if name else None
    except (ModuleNotFoundError, TypeError):  # of the latter: a module that is no package
        root = None
    if root is None:
        raise ConfigError(f"--asr {where}: the package {name!r} is not installed")
    path = root / inner
    if not path.exists():
        raise ConfigError(f"--asr {where}: the package has no {inner}")
    return path


def _need(package: str, project: str, option: str = "--asr") -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as e:
        raise ConfigError(f"this {option} needs {project}; install it with: pip install {project}") from e


def _code(language: str) -> str:
    return _CODES.get(language, language or "en")


def _openai_whisper(path: Path) -> Transcribe:
    whisper = _need("whisper", "openai-whisper")
    if path.suffix == ".pt":
        model = whisper.load_model(str(path), device="cpu")
    else:
        sizes, tensors = read_ggml(path)
        model = whisper.Whisper(whisper.ModelDimensions(**sizes)).eval()
        model.load_state_dict(tensors)

    def transcribe(samples: Samples, language: str) -> str:
        # Greedily, and each window by itself: a judge must not guess from what it said before.
        said = model.transcribe(
            samples, language=_code(language), fp16=False, temperature=0.0, condition_on_previous_text=False
        )
        return str(said["text"])

    return transcribe


def _faster_whisper(path: Path) -> Transcribe:
    module = _need("faster_whisper", "faster-whisper")
    model = module.WhisperModel(str(path), device="auto", local_files_only=True)

    def transcribe(samples: Samples, language: str) -> str:
        segments, _ = model.transcribe(
            samples, language=_code(language), beam_size=1, temperature=0.0, condition_on_previous_text=False
        )
        return "".join(segment.text for segment in segments)

    return transcribe


def _transformers_whisper(path: Path) -> Transcribe:
    module = _need("transformers", "transformers")
    recogniser = module.pipeline("automatic-speech-recognition", model=str(path))
    one_language = not getattr(recogniser.model.generation_config, "is_multilingual", True)

    def transcribe(samples: Samples, language: str) -> str:
        options = {} if one_language else {"language": _code(language), "task": "transcribe"}
        clips = [{"raw": window, "sampling_rate": RATE_HZ} for window in windows(samples)]
        return " ".join(str(recogniser(clip, generate_kwargs=options)["text"]) for clip in clips)

    return transcribe


def windows(samples: Samples) -> list[Samples]:
    """The sound in windows that Whisper can take, each cut at the quietest place of its last third."""
    found = []
    while len(samples) > _WINDOW_S * RATE_HZ:
        start = _WINDOW_S * RATE_HZ * 2 // 3
        slices = samples[start : _WINDOW_S * RATE_HZ].reshape(-1, RATE_HZ // 50)
        cut = start + (int(np.square(slices).sum(axis=1).argmin()) * 2 + 1) * RATE_HZ // 100
        found.append(samples[:cut])
        samples = samples[cut:]
    return [*found, samples]


def _distillmos() -> Rate | None:
    if importlib.util.find_spec("distillmos") is None:
        return None
    distillmos, torch = importlib.import_module("distillmos"), importlib.import_module("torch")
    model = distillmos.ConvTransformerSQAModel().eval()

    def rate(samples: Samples) -> float:
        with torch.no_grad():
            return float(model(torch.from_numpy(samples)[None])[0])

    return rate


def _speaker_encoder(checkpoint: Path | None) -> tuple[Embed | None, str]:
    if checkpoint is not None:
        if not checkpoint.is_file():
            raise ConfigError(f"--speaker-model {checkpoint}: there is no such file")
        return _ecapa(checkpoint), f"ECAPA-TDNN {checkpoint.name}"
    if importlib.util.find_spec("resemblyzer") is None:
        return None, ""
    module = importlib.import_module("resemblyzer")
    encoder = module.VoiceEncoder("cpu", verbose=False)
    return lambda samples: encoder.embed_utterance(module.preprocess_wav(samples, RATE_HZ)), "Resemblyzer"


def _ecapa(checkpoint: Path) -> Embed:
    """SpeechBrain's ECAPA-TDNN as trained on VoxCeleb."""
    import torch

    option = "--speaker-model"
    lobes, network = (_need(f"speechbrain.lobes.{m}", "speechbrain", option) for m in ("features", "models.ECAPA_TDNN"))
    processing = _need("speechbrain.processing.features", "speechbrain", option)
    channels, kernels = [1024] * 4 + [3072], [5, 3, 3, 3, 1]
    model = network.ECAPA_TDNN(
        80, channels=channels, kernel_sizes=kernels, dilations=[1, 2, 3, 4, 1], attention_channels=128, lin_neurons=192
    )
    try:
        model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    except (RuntimeError, OSError, ValueError) as e:
        raise ConfigError(
            f"--speaker-model {checkpoint} is not ECAPA-TDNN of VoxCeleb: give SpeechBrain's embedding_model.ckpt"
        ) from e
    features, norm = lobes.Fbank(n_mels=80), processing.InputNormalization(norm_type="sentence", std_norm=False)
    model.eval()

    def embed(samples: Samples) -> Samples:
        with torch.no_grad():
            bands = norm(features(torch.from_numpy(samples)[None]), torch.ones(1))
            vector: Samples = model(bands)[0, 0].numpy()
        return vector / np.linalg.norm(vector)

    return embed
