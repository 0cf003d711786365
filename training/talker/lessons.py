"""What there is to learn: codes of a corpus, and the prompts that the engine would lay out for its texts.

On a machine that is lent by the minute the talker begins with the codes of an earlier corpus; a new one joins
when it is made.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from training.encode import read
from training.lexicon import SHIPPED as SHIPPED_LEXICON
from training.talker.batches import Batches
from training.talker.config import TalkerTraining
from training.talker.folder import write_folder
from training.talker.utterances import Line, Utterances, gather, hold_out, speakers_in

log = logging.getLogger("talker")


def lines_of(codes: Path, config: TalkerTraining) -> Iterator[Line]:
    """What the codec made of the corpus, in our speakers' names. Sentences kept for evaluation stay out."""
    for index, frames in read(codes):
        speaker = config.speaker_of.get(index["speaker"])
        if speaker is not None and index["split"] == "train":
            yield Line(index["text"], speaker, frames.astype(np.int16))


class Lessons:
    """What there is to learn, laid out as the engine would lay it out; more of it may come while it is learnt."""

    def __init__(
        self,
        codes: Path,
        codec: Path,
        config: TalkerTraining,
        device: torch.device,
        workers: int,
        lexicon: Path = SHIPPED_LEXICON,
    ) -> None:
        """It must run before anything touches the GPU, since it forks."""
        self.config, self.device, self.codec, self.workers, self.lexicon = config, device, codec, workers, lexicon
        lines = list(lines_of(codes, config))
        if len(lines) < 2:
            raise ValueError(f"{codes} holds {len(lines)} utterances of the config's speakers: nothing to train on")
        training, held = hold_out(lines, config.batch.held_out)
        log.info("%d utterances, %d held out, hours %s", len(training), len(held), speakers_in(training))
        self.over = threading.Event()  # set when nothing more is to be waited for
        self.held_texts = {line.text for line in held}
        self.model, self.said = self._lay_out(training, "fork")
        _, held_said = self._lay_out(held, "fork")
        self.training, self.held = self._batches(self.said), self._batches(held_said)

    def _lay_out(self, lines: list[Line], start: str) -> tuple[Qwen3TTSConfig, Utterances]:
        with tempfile.TemporaryDirectory() as name:
            speakers = tuple(self.config.speakers)
            model = write_folder(Path(name), self.config, self.codec, speakers, lexicon=self.lexicon)
            said = gather(Path(name), lines, self.config.batch, self.workers, start)
        if said.frames.max() >= model.predictor.vocab_size or said.frames.shape[1] != model.talker.num_code_groups:
            raise ValueError(f"the codes were not made with {self.codec}")
        return model, said

    def _batches(self, said: Utterances) -> Batches:
        special = {"pad_text": self.model.tts_pad_token_id, "stop": self.model.talker.codec_eos_token_id}
        return Batches(said, self.device, **special, positions=self.config.batch.positions)

    def more(self, codes: Path) -> Batches | None:
        """Wait for the folder `codes` → batches with these too; None once `over` is set. For a thread of its own."""
        while not codes.is_dir():
            if self.over.wait(0.5):
                return None
        lines = [line for line in lines_of(codes, self.config) if line.text not in self.held_texts]
        log.info("%d utterances more, hours %s", len(lines), speakers_in(lines))
        return self._batches(self.said + self._lay_out(lines, "spawn")[1])
