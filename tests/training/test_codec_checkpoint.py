"""Training of a codec resumes: exactly from a whole checkpoint, with averaged weights from a compact one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training.clip import FRAME
from training.codec import checkpoint
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.trainer import Trainer

from training import state

CPU = torch.device("cpu")


def snapshot(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in checkpoint._whole(trainer).items()}


def test_a_resumed_run_is_the_run_that_was_not_stopped(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    checkpoint.save(trained, tmp_path, compact=False)
    resumed = Trainer(config, CPU)
    checkpoint.load(resumed, tmp_path)
    for trainer in (trained, resumed):
        for progress in (0.1, 0.9):
            trainer.step(crops, progress)
    ours, theirs = snapshot(trained), snapshot(resumed)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=0, rtol=0, msg=name)


def test_a_compact_checkpoint_carries_the_averaged_weights(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    checkpoint.save(trained, tmp_path, compact=True)
    resumed = Trainer(config, CPU)
    checkpoint.load(resumed, tmp_path)
    assert (resumed.step_number, resumed.since_restart) == (4, 0)
    for name, value in resumed.trained.items():
        torch.testing.assert_close(value, trained.averaged[name], atol=1e-3, rtol=1e-3)
    resumed.step(crops, progress=0.9)


def test_a_codec_of_fewer_codebooks_goes_on_from_one_of_more(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    checkpoint.save(trained, tmp_path, compact=True)
    fewer = Trainer(replace(config, shape=replace(config.shape, codebooks=config.shape.codebooks - 1)), CPU)
    checkpoint.load(fewer, tmp_path)
    samples, _, _ = crops.draw(2, 12 * FRAME, torch.Generator().manual_seed(1))
    codes = []
    for trainer in (trained, fewer):
        with trainer.averaged_weights() as codec:
            depth = torch.full((2,), trainer.config.shape.codebooks)
            codes.append(codec.quantizer(codec.encoder(samples), depth, update=False).codes)
    assert codes[1].shape[-1] == codes[0].shape[-1] - 1
    assert (codes[1] == codes[0][..., :-1]).float().mean() > 0.95  # half precision may change some codes
    fewer.step(crops, progress=0.1)


def test_shards_keep_below_what_can_be_carried(
    trained: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SHARD_BYTES", 1 << 20)
    checkpoint.save(trained, tmp_path, compact=False)
    sizes = [p.stat().st_size for p in tmp_path.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < (1 << 20) + 100_000
