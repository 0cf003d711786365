"""Finds the codec's files: it is published separately from the language model, and people put it in several places."""

from __future__ import annotations

from pathlib import Path

from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.codec_config import CodecConfig
from sonant.models.published import read_json

TO_FETCH = "config.json and model.pth of bosonai/higgs-audio-v2-tokenizer, or a copy that transformers wrote"
_PROCESSOR = "processor_config.json"
_SUBFOLDERS = ("audio_tokenizer", "codec", "higgs-audio-v2-tokenizer")


def codec_place(folder: Path, elsewhere: str | None) -> Path:
    """The codec's folder or file, for the model in `folder`; `elsewhere` takes precedence over all places in it."""
    try:
        place = Path(elsewhere).expanduser() if elsewhere is not None else _inside(folder)
        there = place.exists()
    except (OSError, RuntimeError) as e:  # RuntimeError: "~" of nobody on this machine
        told = elsewhere if elsewhere is not None else f"the place that {folder / _PROCESSOR} names"
        raise CheckpointError(
            f"the codec at {told} cannot be opened ({e}): name the folder that holds {TO_FETCH}"
        ) from e
    if not there:
        raise CheckpointError(f"there is no codec at {place}: name the folder that holds {TO_FETCH}")
    return place


def read_codec_config(place: Path) -> CodecConfig:
    return CodecConfig.read((place if place.is_dir() else place.parent) / "config.json")


def _inside(folder: Path) -> Path:
    places = [folder / name for name in _SUBFOLDERS]
    if (named := _named_by_processor(folder)) is not None:
        places.append(named)
    for place in places:
        if place.is_dir():
            return place
    looked = ", ".join(str(place) for place in places)
    raise CheckpointError(
        f"{folder} has no codec, which turns codes into sound; looked at {looked}. Put {TO_FETCH} into the first of "
        "these, or name a folder that has them with the option `codec` (--codec)"
    )


def _named_by_processor(folder: Path) -> Path | None:
    """The place that transformers recorded: a path or a repository's name, which may exist beside or in the folder."""
    path = folder / _PROCESSOR
    entry = read_json(path).get("audio_tokenizer") if path.exists() else None
    name = entry.get("audio_tokenizer_name_or_path") if isinstance(entry, dict) else entry
    return folder / Path(name).expanduser() if isinstance(name, str) and name else None
