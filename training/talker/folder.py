"""A checkpoint folder without weights: what lays out prompts in training, and what `export` fills.

One writer for both, so that the trainer's prompts cannot differ from those of the folder that is served.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from sonant.models.qwen3_tts.config import CodecConfig, Qwen3TTSConfig
from sonant.models.qwen3_tts.synthetic.presets import small_files
from training.lexicon import FILE_NAME as LEXICON
from training.lexicon import SHIPPED as SHIPPED_LEXICON
from training.talker.config import TalkerTraining
from training.talker.vocabulary import write_character_tokenizer

FRONT_END = "english"
_TOGETHER = "speech_tokenizer"


def write_folder(
    folder: Path,
    config: TalkerTraining,
    codec: Path,
    speakers: tuple[str, ...],
    dtype: torch.dtype = torch.float32,
    lexicon: Path = SHIPPED_LEXICON,
) -> Qwen3TTSConfig:
    """Every JSON file, and the lexicon; `codec` is an exported speech_tokenizer folder. Read back as the loader will
    read it."""
    (folder / _TOGETHER).mkdir(parents=True, exist_ok=True)
    for source in codec.glob("*.json"):
        shutil.copyfile(source, folder / _TOGETHER / source.name)
    shutil.copyfile(lexicon, folder / LEXICON)
    text_ids = write_character_tokenizer(folder)
    used = max(text_ids.values()) + 1
    voice = config.voice
    published = config.published(CodecConfig.read(codec), text_ids, used + -used % 64, speakers)
    files = {
        "config.json": published | {"dtype": str(dtype).removeprefix("torch.")},
        "generation_config.json": voice.generation(),
        "preprocessor_config.json": small_files()["preprocessor_config.json"],
        "sonant.json": {
            "name": voice.name,
            "license": voice.license,
            "text_front_end": FRONT_END,
            "lexicon": LEXICON,
            "frames_per_token": voice.frames_per_token,
            "segment_chars": voice.segment_chars,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return Qwen3TTSConfig.read(folder)
