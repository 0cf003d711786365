"""Makes the audio, next to the GPU that will train on it: hibari on every CPU core, Kokoro on the device.

    python -m training.corpus --teachers /tmp/teachers --out /tmp/corpus --minutes 4

Kokoro reads the sentences from the front, each in the voice that `carry` drew for it; hibari reads them from the
back. Both stop at the time limit or when they have read enough. Whatever shards are there are a whole corpus, at any
time: a trainer may start on the first ones.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch

from training import settings
from training.clip import labels_of, tidy
from training.shards import ShardWriter, hours_by_speaker, read_index
from training.teachers.hibari import SPEAKER, HibariTeacher, label_ids
from training.teachers.kokoro import UNIT, KokoroTeacher

ROUND = 8192  # sentences that Kokoro groups at once: more fill its batches better, fewer stop more promptly
REPORT_S = 20.0

Row = dict[str, str]


@dataclass(frozen=True)
class CorpusSettings:
    hibari_hours: float
    kokoro_hours: float
    voices: dict[str, int]


def read_sentences(path: Path, split: str, limit: int | None) -> list[Row]:
    with path.open(encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [row for row in rows if row["split"] == split][:limit]


def given_voices(rows: list[Row], wanted: Sequence[str]) -> list[Row]:
    """The sentences that these voices can read, each in one of them.

    A voice that is not wanted hands over to the next wanted one of its accent, which has the same phonemes. Sentences
    of an accent that no wanted voice has are left out.
    """
    turns = {accent: cycle([v for v in wanted if v[0] == accent]) for accent in {v[0] for v in wanted}}
    able = (row for row in rows if row["voice"][0] in turns)
    return [row if row["voice"] in wanted else row | {"voice": next(turns[row["voice"][0]])} for row in able]


def hibari_worker(
    folder: Path, out: Path, rows: list[Row], name: str, deadline: float, most_s: float, told: Any
) -> None:
    """Run one process. `deadline` is on the wall clock, which processes share."""
    teacher = HibariTeacher(folder)
    writer = ShardWriter(out, name)
    for i, row in enumerate(rows):
        if time.time() > deadline or writer.seconds > most_s:
            break
        clip = teacher.speak(row["phonemes"], seed=i)
        if clip is not None:
            writer.add(clip, row["text"], SPEAKER, row["split"])
        if i % 200 == 0:
            told.put((name, writer.seconds))
    writer.flush()
    told.put((name, writer.seconds))


def kokoro_clips(
    teacher: KokoroTeacher, rows: list[Row], deadline: float
) -> Iterator[tuple[Row, np.ndarray, np.ndarray]]:
    """Samples and durations of each row; the order is that of the batches. Copies to the host lag one batch."""
    for first in range(0, len(rows), ROUND):
        part = rows[first : first + ROUND]
        lines = [teacher.line(i, row["phonemes"], row["voice"]) for i, row in enumerate(part)]
        for batch, samples, durations in teacher.read(lines):
            host = samples.float().cpu().numpy()
            for line, wave, lengths in zip(batch, host, durations, strict=True):
                yield part[line.index], wave, lengths.numpy()
            if time.time() > deadline:
                return


def read_with_kokoro(
    options: argparse.Namespace, rows: list[Row], name: str, deadline: float, most_s: float, told: Any
) -> None:
    """Run one process. Several share a GPU well: a single Kokoro leaves most of it idle."""
    torch.backends.cuda.matmul.allow_tf32 = True
    teacher = KokoroTeacher(options.teachers, torch.device(options.device))
    writers: dict[str, ShardWriter] = {}
    vocabulary = teacher.vocabulary
    began = last = time.time()

    def keep(row: Row, wave: np.ndarray, durations: np.ndarray) -> None:
        ids = [0, *teacher.line(0, row["phonemes"], row["voice"]).ids, 0]
        clip = tidy(wave, labels_of(label_ids(ids, vocabulary), durations, UNIT, len(wave)))
        if clip is not None:
            voice = row["voice"]
            writer = writers.setdefault(voice, ShardWriter(options.out, f"{name}-{voice}"))
            writer.add(clip, row["text"], voice, row["split"])

    # One thread, since writers are not shared: it trims this batch while the device runs the next one.
    with ThreadPoolExecutor(1) as pool:
        pending: list[Future[None]] = []
        for row, wave, durations in kokoro_clips(teacher, rows, deadline):
            pending.append(pool.submit(keep, row, wave, durations))
            seconds = sum(w.seconds for w in list(writers.values()))
            if time.time() - last > REPORT_S:
                last = time.time()
                print(f"{name} {seconds / 3600:.2f} h, {seconds / (last - began):.0f} × real time", flush=True)
            if seconds > most_s:
                break
        for each in pending:
            each.result()
    for writer in writers.values():
        writer.flush()
    told.put((name, sum(w.seconds for w in writers.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "corpus.toml")
    parser.add_argument("--teachers", type=Path, required=True, help="what carry.py unpacked")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--split", choices=["train", "eval", "random"], default="train")
    parser.add_argument("--limit", type=int, help="only the first so many sentences of the split")
    parser.add_argument(
        "--first", type=int, default=0, help="sentence to begin with, where an earlier corpus has those before it"
    )
    parser.add_argument("--only", choices=["hibari", "kokoro"])
    parser.add_argument(
        "--voices",
        nargs="+",
        metavar="NAME",
        help="Kokoro's, in which all it reads is read (default: as carry drew them)",
    )
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="hibari processes")
    parser.add_argument("--kokoro-processes", type=int, default=1, help="that share the GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    config = settings.read(options.config, CorpusSettings)
    began = time.time()
    deadline = began + 60 * options.minutes
    rows = read_sentences(options.teachers / "sentences.jsonl", options.split, options.limit)
    rows = rows[options.first :] + rows[: options.first]

    os.environ["OMP_NUM_THREADS"] = "1"  # of each process: with more, their threads take turns, five times slower
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    workers = []
    if options.only != "kokoro":
        american = [row for row in reversed(rows) if row["voice"].startswith("a")]
        for k in range(options.workers):
            share, most_s = american[k :: options.workers], config.hibari_hours * 3600 / options.workers
            arguments = (options.teachers, options.out, share, f"hibari-{k:02d}", deadline, most_s, told)
            workers.append(context.Process(target=hibari_worker, args=arguments))
            workers[-1].start()
    if options.only != "hibari":
        count = options.kokoro_processes
        read = given_voices(rows, options.voices) if options.voices else rows
        for k in range(count):
            kokoro = (options, read[k::count], f"kokoro-{k}", deadline, config.kokoro_hours * 3600 / count, told)
            workers.append(context.Process(target=read_with_kokoro, args=kokoro))
            workers[-1].start()
    wait_for(workers, told, began)
    entries = read_index(options.out)
    hours = {speaker: round(h, 2) for speaker, h in hours_by_speaker(entries).items()}
    print(f"{len(entries):,} clips, {sum(hours.values()):.1f} h in {time.time() - began:.0f} s: {hours}")


def wait_for(workers: list[Any], told: Any, began: float) -> None:
    seconds: dict[str, float] = {}
    last = time.time()
    while any(w.is_alive() for w in workers):
        try:
            name, value = told.get(timeout=1)
            seconds[name] = value
        except Empty:
            pass
        if time.time() - last > REPORT_S:
            last = time.time()
            print(f"after {last - began:.0f} s: {sum(seconds.values()) / 3600:.2f} h", flush=True)
    if failed := [w.name for w in workers if w.exitcode]:
        raise RuntimeError(f"{len(failed)} processes failed")


if __name__ == "__main__":
    main()
