"""The exported codec makes the trainer's sound, and a corpus's codes are those of each clip alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from training.clip import FRAME, Clip
from training.codec import checkpoint
from training.codec.data import Crops
from training.codec.export import export
from training.codec.trainer import Trainer
from training.shards import Corpus, ShardWriter

from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.weights import load_into, open_weights
from training import encode, evaluate_codec

CPU = torch.device("cpu")


def test_the_export_plays_what_the_trainer_heard(trained: Trainer, crops: Crops, tmp_path: Path) -> None:
    samples, _, _ = crops.draw(1, 14 * FRAME, torch.Generator().manual_seed(2))
    with trained.averaged_weights() as codec, torch.no_grad():
        wanted = codec.reconstruct(samples)[0]
        export(codec, tmp_path)
    encoder = encode.load_encoder(tmp_path, CPU)
    decoder = CodecDecoder(CodecConfig.read(tmp_path).decoder)
    load_into(decoder, open_weights(tmp_path), prefix="decoder.", unused=("encoder.",))
    decoder.prepare()
    with torch.no_grad():
        made = decoder(encoder.encode(samples[0])[None], torch.zeros(1, dtype=torch.long))[0]
    torch.testing.assert_close(made, wanted, atol=1e-5, rtol=1e-4)


def test_codes_of_a_batch_are_the_codes_of_each_clip(trained: Trainer, corpus: Corpus, tmp_path: Path) -> None:
    with trained.averaged_weights() as codec:
        export(codec, tmp_path)
    encoder = encode.load_encoder(tmp_path, CPU)
    clips = [torch.from_numpy(corpus.clip(e)) for e in corpus.entries[:4]]
    together = encode.encode_batch(encoder, clips)
    for clip, codes in zip(clips, together, strict=True):
        torch.testing.assert_close(codes.long(), encoder.encode(clip.float() / 32768))


def test_codes_are_read_as_they_were_written(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "SHARD_BYTES", 1000)
    rng = np.random.default_rng(1)
    codes = [rng.integers(0, 1024, (e.samples // FRAME, 3)) for e in corpus.entries]
    encode.write(tmp_path, corpus.entries, codes)
    assert len(list(tmp_path.iterdir())) > 1
    known = {(e.speaker, e.text): c for e, c in zip(corpus.entries, codes, strict=True)}
    found = list(encode.read(tmp_path))
    assert len(found) == len(codes)
    for line, piece in found:
        np.testing.assert_array_equal(piece, known[line["speaker"], line["text"]])


def test_codes_take_the_place_of_those_of_an_earlier_corpus(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files of another codec's codes would otherwise be learnt along with these."""
    monkeypatch.setattr(encode, "SHARD_BYTES", 1000)
    earlier, codes = (np.full((e.samples // FRAME, 3), n) for n in (7, 5) for e in corpus.entries[:1])
    encode.write(tmp_path, corpus.entries, [earlier] * len(corpus.entries))
    encode.write(tmp_path, corpus.entries[:1], [codes])
    assert [piece.max() for _, piece in encode.read(tmp_path)] == [5]


def test_what_a_stage_has_worked_out_is_written_into_a_folder_that_was_not_there(
    trained: Trainer, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ShardWriter(tmp_path / "corpus", "anna")
    entry = corpus.entries[0]
    writer.add(Clip(corpus.clip(entry), corpus.labels_of(entry)), entry.text, entry.speaker, entry.split)
    writer.flush()
    checkpoint.save(trained, tmp_path / "state", compact=True)
    with trained.averaged_weights() as codec:
        export(codec, tmp_path / "codec")
    given = ["--corpus", str(tmp_path / "corpus"), "--codec", str(tmp_path / "codec")]
    figures, flat = tmp_path / "new" / "figures.json", tmp_path / "other" / "codes.npy"
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # other tests run in this process
    monkeypatch.setattr(sys, "argv", ["evaluate_codec", *given, "--out", str(figures)])
    evaluate_codec.main()
    coding = ["--checkpoint", str(tmp_path / "state"), "--out", str(tmp_path / "codes"), "--flat", str(flat)]
    monkeypatch.setattr(sys, "argv", ["encode", *given, *coding, "--device", "cpu"])
    encode.main()
    assert figures.is_file() and len(np.load(flat)) == entry.samples // FRAME
