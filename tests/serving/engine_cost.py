"""What listeners cost the engine's process beside its GPU: core time by thread, and how late it makes first sound.

    PYTHONPATH=src:tests python tests/serving/engine_cost.py [--rate 150] [--seconds 10] [--frames 125] [--profile]

Not a test that pytest collects. The device is made up: steps give rubbish, after the time that a GPU would need for
them (`--step-ms A,B`: A, and B for each row). The other end of the channel is one process that asks at `--rate`, in
place of all front ends. Everything between is the engine's own: messages, admission, queue, steps, sound on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import pstats
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sonant
from engine.host_cost import StandIn
from sonant import EngineConfig
from sonant.engine.output import Slot
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.models.registry import load_prompter
from sonant.serving.channel import messages as m
from sonant.serving.channel.connection import Connection
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.channel.wire_prompt import to_wire
from sonant.serving.limits.admission import Admission
from sonant.serving.options import ServeOptions
from sonant.types import SpeechRequest

TEXT = "Sentence after sentence this text goes on, as books do, and someone listens to all of it."


def ask(path: str, folder: str, rate: float, seconds: float, frames: int, crowd: int, told: Any) -> None:
    """Ask at Poisson arrivals, alone or in crowds; send `told` the waits for first sounds, and the numbers of gaps and
    refusals."""
    prompter = load_prompter(Path(folder), EngineConfig())
    prompt = to_wire(prompter.prompt(SpeechRequest(text=TEXT, max_frames=frames)))
    asked_s: dict[int, float] = {}
    first_s: dict[int, float] = {}
    had_s: dict[int, float] = {}
    gaps: dict[int, float] = {}
    refused, ended = [], 0

    def take(message: Any) -> None:
        nonlocal ended
        if isinstance(message, m.Done):
            speak = (message.id, prompt, True, 0, asked_s[message.id], None, 0.0, 10.0, False, 1.0)
            connection.send(m.Speak(message.id, *speak))
            connection.send(m.Arrived(message.id))
        elif isinstance(message, m.Failed):
            refused.append(message.message)
        elif isinstance(message, m.StepDone):
            now_s = time.monotonic()
            for sound in message.sounds:
                if sound.id not in first_s:
                    first_s[sound.id] = now_s
                elif now_s > first_s[sound.id] + had_s[sound.id]:
                    gaps[sound.id] = now_s - first_s[sound.id] - had_s[sound.id]
                had_s[sound.id] = had_s.get(sound.id, 0.0) + sound.frames * prompter.spec.frame_s
            for end in message.ends:
                ended += 1
                connection.send(m.Leave(end.id))

    connection = Connection(m.FromEngine, take, lambda _: None)

    async def run() -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, path)
        connection.send(m.Hello(m.PROTOCOL, 1))
        rng, due_s = random.Random(0), time.monotonic()
        until_s = due_s + seconds
        while due_s < until_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            n = len(asked_s)
            asked_s[n] = time.monotonic()
            connection.send(m.Admit(n, f"client {n % 50}", "speech", 1))
            if (n + 1) % crowd == 0:
                due_s += rng.expovariate(rate / crowd)
        while ended + len(refused) < len(asked_s):
            await asyncio.sleep(0.05)

    asyncio.run(run())
    waits_ms = [1e3 * (first_s[n] - asked_s[n]) for n in first_s]
    told.send((waits_ms, len(gaps), len(refused)))


class MadeUpDevice:
    """Takes the place of a runner's steps, and of its waits for them."""

    def __init__(self, engine: sonant.Engine, base_ms: float, row_ms: float) -> None:
        runner = engine.loop.runner
        self.runner, self.base_s, self.row_s = runner, base_ms / 1e3, row_ms / 1e3
        self.free_s, self.done_s = 0.0, dict[int, float]()
        self.stand_in = StandIn(runner.rows.scratch, runner.ring.slots[0].words.shape[1] - 1)
        samples = engine.model.spec.samples_per_frame
        largest = torch.ones(runner.config.max_batch or 1, engine.sizes.chunks[-1] * samples + 1, dtype=torch.int16)
        runner.prefill = self.stand_in.prefill  # type: ignore[assignment]
        runner.frame = {0: self._frame}  # type: ignore[dict-item]
        runner.codec = {n: lambda rows, n=n: largest[: len(rows), : n * samples + 1] for n in engine.sizes.chunks}  # type: ignore[misc]
        self.ring = runner.ring
        self.ring._copy_records = self._copy  # type: ignore[method-assign]
        self.ring._copy_sounds = lambda slot, sounds: None  # type: ignore[method-assign]
        self.ring.wait = self._wait  # type: ignore[method-assign]

    def _frame(self, rows: Any) -> torch.Tensor:
        began_s = max(self.free_s, time.monotonic())
        self.free_s = began_s + self.base_s + self.row_s * len(rows)
        return self.stand_in.frame(rows)

    def _copy(self, slot: Slot, records: Any, clock: Any) -> None:
        """Copy only what the host reads besides sound: a GPU does the copying itself."""
        row = 0
        for record in records:
            slot.records[row : row + len(record)].copy_(record)
            row += len(record)
        slot.samples[0] = 1
        self.done_s[id(slot)] = self.free_s

    def _wait(self, slot: Slot) -> None:
        time.sleep(max(0.0, self.done_s[id(slot)] - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--frames", type=int, default=125)
    parser.add_argument("--step-ms", default="4,0.03")
    parser.add_argument("--crowd", type=int, default=1, help="so many come at once")
    parser.add_argument("--profile", action="store_true", help="of the channel's thread, by function")
    args = parser.parse_args()
    base_ms, row_ms = (float(x) for x in args.step_ms.split(","))
    with tempfile.TemporaryDirectory() as parent:
        folder, path = Path(parent) / "tiny", Path(parent) / "engine"
        write_checkpoint(folder, kind="custom_voice", size="tiny", device="cpu", eos_gain=0.0)
        config = EngineConfig(max_rows=2048, max_batch=1024, kv_tokens=1 << 20, max_waiting=1024, steps_ahead=1)
        with sonant.load(folder, device="cpu", config=config, sound="int16") as engine:
            MadeUpDevice(engine, base_ms, row_ms)
            for slot in engine.loop.runner.ring.slots:
                slot.samples.fill(1)  # so that all marks are set
            port = EnginePort(engine, path, Admission(ServeOptions()))
            profile = cProfile.Profile()
            if args.profile:
                port.loop.call_soon_threadsafe(profile.enable)
            threads = {"steps": engine.loop._thread, "channel": port._thread}
            clocks = {n: time.pthread_getcpuclockid(t.ident) for n, t in threads.items() if t.ident is not None}
            began_s, before = time.monotonic(), {n: time.clock_gettime(c) for n, c in clocks.items()}
            ours, theirs = multiprocessing.get_context("spawn").Pipe()
            client = (str(path), str(folder), args.rate, args.seconds, args.frames, args.crowd, theirs)
            process = multiprocessing.get_context("spawn").Process(target=ask, args=client)
            process.start()
            waits_ms, gaps, refused = ours.recv()
            took_s = time.monotonic() - began_s
            print(f"{len(waits_ms)} listeners, {refused} refused, {gaps} with a gap; first sound ms:", end=" ")
            print(*(f"p{q} {np.percentile(waits_ms, q):.1f}" for q in (50, 90, 99)))
            made_s = len(waits_ms) * args.frames * engine.model.spec.frame_s
            for name, clock in clocks.items():
                spent_s = time.clock_gettime(clock) - before[name]
                print(f"{name}: {spent_s:.2f} s of {took_s:.1f}, {1e6 * spent_s / made_s:.0f} us a second of sound")
            spans = {n: round(1e3 * t.total / max(1, sum(t.counts)), 3) for n, t in engine.telemetry.phase_s.items()}
            rows = engine.telemetry.rows
            print(f"{engine.loop.steps} steps of {rows.total / sum(rows.counts):.0f} rows; ms:", json.dumps(spans))
            if args.profile:
                port.loop.call_soon_threadsafe(profile.disable)
                time.sleep(0.1)
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            port.close()


if __name__ == "__main__":
    main()
