"""On a GPU: sound made after a step's frames (`--codec-stream shared`), and beside the next step's frames, as usual.

    python tests/gpu_overlap.py --folder /tmp/full [--parts bits,engine,graphs] [--rows 64,128,256,512] [--out a.json]

Not a test that pytest collects. It takes less than two minutes on an H200. Parts:
- bits: 256 files with the same seeds, one frame a chunk, spoken both ways. Their samples must be equal; the exit code
  is 1 if they are not.
- engine: as many listeners as rows, each followed by another, all with texts of their own, for both ways: ms a step,
  rows in it, how long the host waited for the device in it (next to nothing: the host is the limit), audio-s/s, and
  first sounds by the host's clock, without a server. "in order": steps that make a first sound keep the order of frames
  and sound with any number of rows, not only up to 48. "calls alone": no request waits for others to share a call of
  the codec (`engine/codec_batching.py`).
- graphs: sixteen frames of all rows and their sound, without an engine: in turn, on two streams, and with frames first,
  whose graphs are captured at a high priority for that. This is the most that can be gained.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sonant
from engine.families import Options, speak_at_once
from sonant import Engine, EngineConfig
from sonant.bench.engine.listener import TEXT
from sonant.bench.engine.step_rig import StepRig
from sonant.config import CodecStreamChoice
from sonant.engine.codec_stream import HIGH_PRIORITY
from sonant.engine.graphs import CapturedGraph, GraphPool, capture_graph
from sonant.engine.request import Request
from sonant.models.prompt import Prompt
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.text_table import grid
from sonant.types import AudioChunk, FinishReason, SpeechRequest

FRAMES = 16
ROUNDS = 4
LENGTH = 125  # frames of a listener: ten seconds
TEXTS = 1200  # all different, so that prompts are prefilled
WARM_S, WINDOW_S = 1.0, 1.6
BITS_ROWS, BITS_FRAMES = 256, 48
TITLES = ("rows", "ms a frame: frames", "sound", "in turn", "at once", "frames first")
Work = tuple[Sequence[CapturedGraph], int]  # graphs to replay in turn, with their memory; priority of their stream


WAYS: tuple[CodecStreamChoice, ...] = ("shared", "own")


@dataclass(frozen=True)
class Source:
    folder: Path
    device: str

    def load(self, way: CodecStreamChoice, rows: int, **options: Any) -> Engine:
        gc.collect()  # frees the previous engine
        torch.cuda.empty_cache()
        began_s = time.perf_counter()
        config = EngineConfig(max_rows=rows, warm_rows=rows, kv_tokens=256 * rows, codec_stream=way, **options)
        engine = sonant.load(self.folder, device=self.device, config=config, sound="int16")
        print(f"{way}: loaded in {time.perf_counter() - began_s:.1f} s", flush=True)
        return engine


class Listener:
    """One row's sink. When its request ends, it posts another with the next prompt."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.asked_s, self.waits = crowd, 0.0, False

    def begin(self, speech: SpeechRequest, prompt: Prompt) -> None:
        engine = self.crowd.engine
        self.asked_s, self.waits = time.monotonic(), True
        self.request = Request(speech, prompt, self, self.asked_s, engine.spec.delay_steps, keeps_frames=False)
        engine.loop.post(self.request)

    def push(self, chunk: AudioChunk) -> None:
        if self.waits:
            self.waits = False
            self.crowd.first_s.append(time.monotonic() - self.asked_s)
        self.crowd.audio_s += len(chunk.samples) / chunk.sample_rate

    def finish(self, reason: FinishReason) -> None:
        if not self.crowd.stopped:
            self.begin(*next(self.crowd.prompts))

    def fail(self, error: Exception) -> None:
        raise error


class Crowd:
    def __init__(self, engine: Engine, prompts: Iterator[tuple[SpeechRequest, Prompt]]) -> None:
        self.engine, self.prompts, self.stopped = engine, prompts, False
        self.first_s: list[float] = []
        self.audio_s = 0.0

    def measure(self, count: int) -> dict[str, float]:
        """Listeners begin at different places of a text, so that their chunks are not due at the same time."""
        listeners = [Listener(self) for _ in range(count)]
        for n, listener in enumerate(listeners):
            listener.begin(*ask(self.engine, n, 1 + LENGTH * (n + 1) // count))
        time.sleep(WARM_S)
        loop, rows, waits = self.engine.loop, self.engine.telemetry.rows, self.engine.telemetry.phase_s["wait"]
        began_s, steps, decoded, audio_s = time.perf_counter(), loop.steps, rows.total, self.audio_s
        waited_s = waits.total
        self.first_s.clear()
        time.sleep(WINDOW_S)
        took_s, made = time.perf_counter() - began_s, loop.steps - steps
        first_ms = 1e3 * np.array(self.first_s or [float("nan")])
        found = {
            "ms_a_step": 1e3 * took_s / made,
            "rows": (rows.total - decoded) / made,
            "host_waited_ms": 1e3 * (waits.total - waited_s) / made,
            "audio_s_per_s": (self.audio_s - audio_s) / took_s,
            "first_sound_p50_ms": float(np.percentile(first_ms, 50)),
            "first_sound_p99_ms": float(np.percentile(first_ms, 99)),
        }
        self.stopped = True
        loop.abort([listener.request for listener in listeners])
        while self.engine.stats().running or self.engine.stats().waiting:
            time.sleep(0.01)
        return found


def ask(engine: Engine, n: int, frames: int) -> tuple[SpeechRequest, Prompt]:
    speech = SpeechRequest(text=f"{n}. {TEXT}", seed=n, max_frames=frames)
    return speech, engine.prompter.prompt(speech)


def measure_way(
    source: Source, way: CodecStreamChoice, rows: Sequence[int], few_rows: int | None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with source.load(way, max(rows)) as engine:
        prompts = itertools.cycle([ask(engine, n, LENGTH) for n in range(TEXTS)])
        stream = engine.loop.runner.codec_stream
        stream.few_rows = stream.few_rows if few_rows is None else few_rows
        batching = engine.loop.scheduler.codec_batching
        usual = stream.first_sound_rows, batching.patience_s
        orders = {str(way): usual, f"{way}, calls alone": (usual[0], float("inf"))}
        if way == "own":
            orders["own, in order"] = (max(rows), usual[1])
        for (name, order), count in itertools.product(orders.items(), rows):
            stream.first_sound_rows, batching.patience_s = order
            found.append({"listeners": count, "way": name, **Crowd(engine, prompts).measure(count)})
    return found


def measure_engine(source: Source, rows: Sequence[int], few_rows: int | None) -> list[dict[str, Any]]:
    found = [line for way in WAYS for line in measure_way(source, way, rows, few_rows)]
    found.sort(key=lambda line: line["listeners"])
    lines = [[f"{value:.2f}" if isinstance(value, float) else str(value) for value in f.values()] for f in found]
    print(grid([tuple(found[0]), *map(tuple, lines)]), flush=True)
    return found


def digest_of(source: Source, way: CodecStreamChoice, rows: int) -> str:
    """A digest of all samples of files that are spoken at once."""
    requests: list[Options] = [{"text": TEXT, "seed": n, "max_frames": BITS_FRAMES - n % 7} for n in range(rows)]
    said = hashlib.blake2b(digest_size=8)
    with source.load(way, rows, chunk_s=(0.08,)) as engine:
        for speech in speak_at_once(engine, requests):
            said.update(np.ascontiguousarray(speech.samples).tobytes())
    return said.hexdigest()


def same_bits(source: Source, rows: int) -> dict[str, str]:
    digests = {str(way): digest_of(source, way, rows) for way in WAYS}
    print(grid([(f"samples of {rows} files", "digest"), *digests.items()]), flush=True)
    return digests


def wall_ms(works: Sequence[Work]) -> float:
    """Wall-clock time until all are done, each on a stream of its own; graphs are launched in turn, as by steps."""
    streams = [torch.cuda.Stream(priority=level) for _, level in works]
    best_ms = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for turn in range(max(len(graphs) for graphs, _ in works)):
            for (graphs, _), stream in zip(works, streams, strict=True):
                if turn < len(graphs):
                    with torch.cuda.stream(stream):
                        graphs[turn].graph.replay()
        torch.cuda.synchronize()
        best_ms = min(best_ms, 1e3 * (time.perf_counter() - began_s))
    return best_ms


def measure_graphs(engine: Engine, count: int) -> tuple[str, ...]:
    with StepRig(engine, count, 60) as rig, torch.inference_mode():
        runner, rows = rig.runner, torch.tensor(rig.rows, device="cuda")
        runner.span_blocks = runner.table_blocks
        frame: Callable[[torch.Tensor], torch.Tensor] = runner.frame[rig.requests[0].prompt.variant].run
        sound: Callable[[torch.Tensor], torch.Tensor] = runner.codec[FRAMES].run
        pools = [GraphPool(engine.device, priority=level) for level in (0, HIGH_PRIORITY)]
        plain, first = ([capture_graph("frame", frame, rows, pool)] * FRAMES for pool in pools)
        groups = [torch.tensor([r.row for r in group], device="cuda") for group in rig.groups(FRAMES)]
        pool = GraphPool(engine.device)
        sounds = [capture_graph("sound", sound, group, pool) for group in groups]
        found = [wall_ms([(graphs, 0)]) for graphs in (plain, sounds, [*plain, *sounds])]
        found.append(wall_ms([(plain, 0), (sounds, 0)]))
        found.append(wall_ms([(first, HIGH_PRIORITY), (sounds, 0)]))
        return str(count), *(f"{ms / FRAMES:.3f}" for ms in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the 1.7B shapes; written where there is none")
    parser.add_argument("--parts", default="bits,engine,graphs")
    parser.add_argument("--rows", default="64,128,256,512")
    parser.add_argument("--few-rows", type=int, help="steps of so many keep their order; the engine's own: 8")
    parser.add_argument("--device", default="cuda", help="cpu: to try bits and engine with a tiny model, to no end")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    source = Source(args.folder, args.device)
    if not (args.folder / "config.json").exists():
        args.folder.mkdir(parents=True, exist_ok=True)
        write_checkpoint(args.folder, kind="custom_voice", size="1.7b", device="cuda", tokenizer_from=None)
    rows, parts = [int(n) for n in args.rows.split(",")], args.parts.split(",")
    report: dict[str, Any] = {}
    if "bits" in parts:
        report["bits"] = same_bits(source, min(BITS_ROWS, max(rows)))
    if "engine" in parts:
        report["engine"] = measure_engine(source, rows, args.few_rows)
    if "graphs" in parts:
        engine = source.load("own", max(rows), chunk_s=(0.08 * FRAMES,))
        engine.close()
        report["graphs"] = [TITLES, *(measure_graphs(engine, count) for count in rows)]
        print(grid(report["graphs"]), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1))
    if len(set(report.get("bits", {}).values())) > 1:
        raise SystemExit("WRONG: the samples differ")


if __name__ == "__main__":
    main()
