"""The decoder learns from the codes that a voice would pick, aligned with their sound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training.clip import FRAME
from training.codec import checkpoint
from training.codec.blend import blend
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.inputs import draw_inputs
from training.codec.trainer import Phase, Trainer
from training.shards import Corpus

from training import state

CPU = torch.device("cpu")


def test_codes_are_looked_up_as_they_were_quantised(trained: Trainer, crops: Crops) -> None:
    samples, _, _ = crops.draw(2, 12 * FRAME, torch.Generator().manual_seed(1))
    depth = torch.full((2,), trained.config.shape.codebooks)
    quantized = trained.codec.quantizer(trained.codec.encoder(samples), depth, update=False)
    torch.testing.assert_close(trained.codec.quantizer.look_up(quantized.codes), quantized.latents)


def test_guesses_lie_where_their_sound_does(corpus: Corpus) -> None:
    """Each frame's guess is the frame's own number, and the first frame has none."""
    count = len(corpus.samples) // FRAME
    guesses = np.repeat(np.arange(count, dtype=np.int16)[:, None], 2, 1)
    guesses[0] = -1
    numbers = np.repeat(np.arange(count, dtype=np.int16), FRAME)
    crops = Crops(Corpus(corpus.entries, numbers, corpus.labels), CPU, guesses)
    samples, _, guessed = crops.draw(32, 12 * FRAME, torch.Generator().manual_seed(3))
    assert guessed is not None
    heard = (samples.unflatten(1, (-1, FRAME)) * 32768).round()
    assert (heard == heard[..., :1]).all()
    known = guessed[..., 0] >= 0
    assert known.any() and torch.equal(heard[..., 0][known].long(), guessed[..., 1][known])
    assert (heard[..., 0][~known] == 0).all()
    with pytest.raises(ValueError, match="another corpus"):
        Crops(corpus, CPU, guesses[1:])


def test_the_decoder_learns_from_guesses(trained: Trainer, corpus: Corpus) -> None:
    shape = trained.config.shape
    crops = Crops(corpus, CPU, np.zeros((len(corpus.samples) // FRAME, shape.codebooks), np.int16))
    before = trained.codec.decoder.pre_conv.conv.weight.detach().clone()
    every = replace(trained.config, batch=replace(trained.config.batch, guessed=1.0))
    trained.config = every
    inputs = draw_inputs(every, trained.codec.sounds, crops, trained.step_number, torch.Generator().manual_seed(1))
    assert (inputs["guessed"] <= 0).all() and (inputs["guessed"] == 0).any()
    trained.step(crops, progress=0.99)
    assert trained.frozen and not torch.equal(trained.codec.decoder.pre_conv.conv.weight, before)
    _, made = trained._reconstruct(Phase(quantizing=True, adversarial=False, frozen=True), inputs)
    whole = (inputs["guessed"][..., 0] == 0).all(1)
    torch.testing.assert_close(
        made[whole], made[whole][:1].expand(int(whole.sum()), -1)
    )  # the same codes, the same sound


def test_a_blend_lies_between_two_decoders_of_the_same_codes(
    config: CodecTraining, trained: Trainer, crops: Crops, tmp_path: Path
) -> None:
    trained.step(crops, progress=0.99)  # from here on the codes stay
    checkpoint.save(trained, tmp_path / "first", compact=True)
    for _ in range(3):
        trained.step(crops, progress=0.99)
    checkpoint.save(trained, tmp_path / "second", compact=True)
    (first, _), (second, meta) = (state.read(tmp_path / name, checkpoint.NAME) for name in ("first", "second"))
    state.write(tmp_path / "blend", checkpoint.NAME, blend(first, second, 0.25), meta)
    between = Trainer(config, CPU)
    checkpoint.load(between, tmp_path / "blend")
    name = "decoder.pre_conv.conv.weight"
    a, b = (given[f"averaged.{name}"].float() for given in (first, second))
    assert not torch.equal(a, b)
    torch.testing.assert_close(between.averaged[name], 0.75 * a + 0.25 * b, atol=1e-3, rtol=1e-3)
    second[next(n for n in second if n.startswith("averaged.encoder."))] += 1
    with pytest.raises(ValueError, match="codes are not the same"):
        blend(first, second, 0.25)
