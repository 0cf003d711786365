"""A voice small enough for tests: an untrained codec, and utterances whose codes depend on their text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from training.codec.config import CodecTraining
from training.codec.export import export as export_codec
from training.codec.model import Codec
from training.talker.batches import Batches
from training.talker.config import TalkerTraining
from training.talker.trainer import Trainer
from training.talker.utterances import Line, builder_of, gather

from sonant.text.lexicon import Lexicon
from training import settings

BOOKS, BOOK_SIZE = 3, 16
SOUNDS = {
    "a": "ə", "cat": "kˈæt", "is": "ɪz", "it": "ɪt", "look": "lˈʊk", "mat": "mˈæt", "night": "nˈIt", "no": "nˈO",
    "rains": "ɹˈAnz", "sat": "sˈæt", "sky": "skˈI", "the": "ðə", "user": "jˈuzəɹ", "where": "wˌɛɹ", "works": "wˈɜɹks",
}  # fmt: skip
SENTENCES = (
    "Hi.",
    "Where is it?",
    "The user thanked his assistant.",
    "She paid $9.99 on May 3rd.",
    "No, not yet!",
    "A cat sat on the mat.",
    "Dr. Lee works for the BBC.",
    "It rains.",
    "Look at the sky, then at the sea.",
    "Good night.",
)


def tiny_config() -> TalkerTraining:
    return settings.read(settings.CONFIGS / "talker-tiny.toml", TalkerTraining)


def write_codec(folder: Path) -> Path:
    """A speech_tokenizer folder that turns codes into quiet noise."""
    tiny = settings.read(settings.CONFIGS / "codec-tiny.toml", CodecTraining)
    shape = replace(tiny.shape, codebooks=BOOKS, codebook_size=BOOK_SIZE, entry_dim=16, decoder_dim=32, latent_dim=32)
    torch.manual_seed(0)
    codec = Codec(replace(tiny, shape=shape))
    with torch.no_grad():
        for name, value in codec.named_buffers():
            if "codebook" in name and name.endswith("embed_sum"):
                value.normal_()
    export_codec(codec, folder)
    return folder


def write_lexicon(path: Path) -> Path:
    """Write a lexicon of a few words of the sentences: the one that ships takes a tenth of a second to read."""
    Lexicon(SOUNDS).write(path)
    return path


def batches_of(config: TalkerTraining, folder: Path, lines: list[Line], positions: int = 2048) -> Batches:
    model = builder_of(folder).config
    data = gather(folder, lines, config.batch, workers=1)
    stop = model.talker.codec_eos_token_id
    return Batches(data, torch.device("cpu"), pad_text=model.tts_pad_token_id, stop=stop, positions=positions)


def trainer_of(config: TalkerTraining, folder: Path) -> Trainer:
    return Trainer(config, builder_of(folder).config, torch.device("cpu"))


def lines(labels: tuple[str, ...] = ("anna", "ben")) -> list[Line]:
    """Real speech has two to four frames for each letter; these lines have about one, random but fixed."""
    made = []
    for i, text in enumerate(SENTENCES):
        rng = np.random.default_rng(i)
        frames = rng.integers(0, BOOK_SIZE, (6 + len(text) // 2, BOOKS)).astype(np.int16)
        made.append(Line(text, labels[i % len(labels)], frames))
    return made
