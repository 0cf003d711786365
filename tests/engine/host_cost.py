"""What the step thread itself costs, without a device: microseconds of one core for a row in a step, by phase.

    PYTHONPATH=src:tests python tests/engine/host_cost.py [--rows 64,256,512,1024] [--steps 300] [--profile]

Not a test that pytest collects. A tiny model stands in for a large one, and only the host's half of its steps runs:
prefill, frame and codec give made-up results at once. A listener who has ended is followed by another, each hears a
hundred frames, and the sound goes nowhere. On a GPU the device works meanwhile, so this must stay well below the time
of its step.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import sonant
from sonant import Engine, EngineConfig
from sonant.engine.graphs import GraphedStep
from sonant.engine.request import Request
from sonant.models.base import PrefillItem
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.models.status import Status
from sonant.types import AudioChunk, FinishReason, SpeechRequest

FRAMES = 100


class StandIn:
    """Stands in for a runner's prefill and frame step: counts frames, and ends rows."""

    def __init__(self, rows: int, words: int) -> None:
        self.left = np.zeros(rows + 1, np.int64)
        self.words = words

    def prefill(self, items: Sequence[PrefillItem]) -> None:
        for item in items:
            self.left[item.row] = item.prompt.max_frames

    def frame(self, rows: Sequence[int]) -> Tensor:
        self.left[rows] -= 1
        records = np.zeros((len(rows), 1 + self.words), np.int32)
        records[:, 0] = np.where(self.left[rows] < 0, int(Status.CAPPED), int(Status.RUNNING))
        return torch.from_numpy(records)


class Listeners:
    """Posts as many requests as there are rows, and another for each that ends. It is also the sink of them all."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.stopped = engine, False
        self.asked = SpeechRequest(text="hello the world", max_frames=FRAMES)
        self.prompt = engine.prompter.prompt(self.asked)
        self._coming = 0
        self._thread = threading.Thread(target=self._come, daemon=True)

    def start(self, count: int) -> None:
        self._coming = count
        self._thread.start()

    def _come(self) -> None:
        loop, delay_steps = self.engine.loop, self.engine.spec.delay_steps
        came = 0
        while not self.stopped:
            while came < self._coming:
                loop.post(Request(self.asked, self.prompt, self, time.monotonic(), delay_steps, keeps_frames=False))
                came += 1
                if came % 8 == 0:
                    break  # so that not all are at the same frame
            time.sleep(0.002)

    def push(self, chunk: AudioChunk) -> None:
        pass

    def finish(self, reason: FinishReason) -> None:
        self._coming += 1

    def fail(self, error: Exception) -> None:
        raise error


def measure(folder: Path, rows: int, steps: int, profiled: bool) -> str:
    config = EngineConfig(max_rows=rows, max_batch=rows, kv_tokens=max(4096, rows * 256), max_waiting=2 * rows)
    with sonant.load(folder, device="cpu", config=config, sound="int16") as engine:
        runner = engine.loop.runner
        stand_in = StandIn(rows, runner.ring.slots[0].words.shape[1] - 1)
        runner.prefill = stand_in.prefill  # type: ignore[assignment]
        runner.frame = {0: stand_in.frame}  # type: ignore[dict-item]
        samples = engine.model.spec.samples_per_frame

        def codec(frames: int) -> GraphedStep:
            return lambda rows: torch.ones(len(rows), frames * samples + 1, dtype=torch.int16)  # type: ignore[return-value]

        runner.codec = {n: codec(n) for n in engine.sizes.chunks}
        listeners = Listeners(engine)
        profile = cProfile.Profile()
        if profiled:
            observer = _Profiled(profile)
            engine.loop.observe(observer)
        listeners.start(rows)
        telemetry = engine.telemetry
        while engine.loop.steps < 150:
            time.sleep(0.01)
        before = {name: tally.total for name, tally in telemetry.phase_s.items()}
        began, row_steps = engine.loop.steps, telemetry.rows.total
        while engine.loop.steps < began + steps:
            time.sleep(0.01)
        made, spoken = engine.loop.steps - began, telemetry.rows.total - row_steps
        spent = {name: (tally.total - before[name]) * 1e6 / spoken for name, tally in telemetry.phase_s.items()}
        listeners.stopped = True
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    total, each = sum(spent.values()), "  ".join(f"{name} {us:.2f}" for name, us in spent.items())
    step_ms = total * spoken / made / 1e3
    return f"{spoken / made:6.1f} rows: {step_ms:.2f} ms a step, {total:6.2f} us a row ({each})"


class _Profiled:
    """An observer that starts a profile from within the step thread."""

    def __init__(self, profile: cProfile.Profile) -> None:
        self.profile, self.seen = profile, 0

    def between_steps(self) -> None:
        self.seen += 1
        if self.seen == 100:
            self.profile.enable()

    def around_launch(self, plan: object) -> AbstractContextManager[None]:
        return nullcontext()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="64,256,512,1024")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "tiny"
        write_checkpoint(folder, kind="custom_voice", size="tiny", device="cpu", eos_gain=0.0)
        for rows in (int(n) for n in args.rows.split(",")):
            print(measure(folder, rows, args.steps, args.profile), flush=True)


if __name__ == "__main__":
    main()
