"""The first codebook tells, from the labels, which sounds a frame holds: for the decoder and in the talker's codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training.clip import FRAME, STEP
from training.codec import checkpoint
from training.codec.data import Crops
from training.codec.export import export
from training.codec.sounds import Sounds
from training.codec.trainer import Trainer
from training.shards import Corpus

from training import encode, state

CPU = torch.device("cpu")
STEPS = FRAME // STEP


def frame(*sounds: int) -> torch.Tensor:
    """Labels of a frame in which each sound lasts equally long."""
    return torch.tensor(sounds, dtype=torch.uint8).repeat_interleave(STEPS // len(sounds))


def found(labels: torch.Tensor, entries: int) -> Sounds:
    sounds = Sounds(entries)
    sounds.find(labels, torch.Generator().manual_seed(1))
    return sounds


def test_frames_of_other_sounds_or_another_order_are_other_kinds() -> None:
    frames = [frame(0), frame(7), frame(7, 9), frame(9, 7), frame(9), frame(3, 0)]
    sounds = found(torch.cat(frames * 50), len(frames))
    kinds = sounds(torch.cat(frames))
    assert kinds.unique().numel() == len(frames)
    assert torch.equal(sounds(torch.stack([torch.cat(frames), torch.cat(frames)])), torch.stack([kinds, kinds]))


def test_a_rare_kind_is_not_drowned_by_a_frequent_one() -> None:
    rare = frame(4, 5, 6, 4)
    sounds = found(torch.cat([frame(0)] * 3000 + [frame(1)] * 3000 + [rare] * 10), 3)
    assert sounds(torch.cat([frame(0), frame(1), rare])).unique().numel() == 3


def test_a_frame_at_the_edge_of_a_kind_belongs_to_it() -> None:
    sounds = found(torch.cat([frame(2), frame(8)] * 50), 2)
    nearly = frame(2)
    nearly[-1] = 8
    assert sounds(nearly) == sounds(frame(2)) != sounds(frame(8))


def test_entries_keep_the_distances_between_kinds() -> None:
    sounds = found(torch.cat([frame(a, b) for a in range(6) for b in range(6)] * 10), 36)
    few, many = sounds.entries(16), sounds.entries(400)
    torch.testing.assert_close(torch.pdist(many), 8 * torch.pdist(sounds.kinds), rtol=1e-3, atol=1e-3)
    assert few.shape == (36, 16)
    assert (torch.cdist(few, few) + 9e9 * torch.eye(36)).min() > 0.5


def test_the_decoder_hears_what_it_is_told(trained: Trainer, crops: Crops) -> None:
    samples, _, _ = crops.draw(2, 12 * FRAME, torch.Generator().manual_seed(1))
    codec = trained.codec
    told = torch.full((2, 12), -1)
    told[0] = torch.arange(12)
    with torch.no_grad():
        latents = codec.encoder(samples)
        depth = torch.full((2,), codec.config.shape.codebooks)
        own, given = (codec.quantizer(latents, depth, t, update=False) for t in (None, told))
    assert torch.equal(given.codes[0, :, 0], told[0])
    assert torch.equal(given.codes[1], own.codes[1])
    assert torch.equal(given.codes[..., 1:], own.codes[..., 1:])
    assert given.naming > 0
    untold = codec.quantizer(latents, depth, torch.full_like(told, -1), update=False)
    assert untold.naming == 0
    torch.testing.assert_close(given.latents, codec.quantizer.look_up(given.codes), atol=1e-5, rtol=1e-4)


def test_the_encoder_learns_to_name_them(trained: Trainer, one_batch: Crops) -> None:
    c = trained.config
    every_row = replace(c.quantizer, told=1.0)
    trained.config = replace(c, quantizer=every_row, batch=replace(c.batch, long_every=10**6))
    naming = [trained.step(one_batch, progress=0.0)["naming"].item() for _ in range(6)]
    assert naming[-1] < 0.1 * naming[0]


def test_the_talker_learns_the_codes_of_the_labels(trained: Trainer, corpus: Corpus, tmp_path: Path) -> None:
    checkpoint.save(trained, tmp_path / "codec", compact=True)
    with trained.averaged_weights() as codec:
        export(codec, tmp_path / "st")
    state.write(tmp_path / "older", checkpoint.NAME, {"averaged.x": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match="no kinds of sounds"):
        encode.load_sounds(tmp_path / "older", CPU)
    encoder, sounds = encode.load_encoder(tmp_path / "st", CPU), encode.load_sounds(tmp_path / "codec", CPU)
    codes = encode.encode_corpus(encoder, sounds, corpus, CPU)
    for entry, got in zip(corpus.entries, codes, strict=True):
        heard = encoder.encode(torch.from_numpy(corpus.clip(entry)).float() / 32768).numpy()
        np.testing.assert_array_equal(got[:, 1:], heard[:, 1:])
        np.testing.assert_array_equal(got[:, 0], trained.codec.sounds(torch.from_numpy(corpus.labels_of(entry))))
