"""On a GPU: models that are larger than their memory budget. Full-size random weights, each engine in its own process.

    python tests/gpu_paging.py --qwen /tmp/qwen --higgs /tmp/higgs [--voxcpm2 /tmp/voxcpm2] [--sleep] [--out FILE]

Not a test that pytest collects: it needs a GPU, and two to three minutes. For each model it loads an engine whose
weights all stay, one whose budget is large enough for all (which must be the same), and one with less. All speak the
same requests, alone and with arrivals and aborts at the same steps, and must say the same to the bit. Each promise is
printed with PASS or FAIL; the exit code is 0 if all were kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

GIB = 1 << 30
SLACK = 1.2  # how many times its floor a step may take


@dataclass(frozen=True)
class Case:
    family: str
    kind: str
    size: str
    budget: str
    options: dict[str, Any]
    listeners: int
    most_gib: float | None = None  # of the GPU, context included, to which the process is limited


CASES = {
    "qwen": Case("qwen3_tts", "custom_voice", "1.7b", "1.5GiB", {"max_rows": 16, "kv_tokens": 16384}, 8),
    "higgs": Case(
        "higgs_audio_v2", "base", "3b", "5.5GiB", {"max_rows": 2, "kv_tokens": 768, "prefill_tokens": 64}, 1, 6.5
    ),
    "voxcpm2": Case("voxcpm2", "base", "2b", "1.5GiB", {"max_rows": 8, "kv_tokens": 8192}, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in CASES:
        parser.add_argument(f"--{name}", metavar="FOLDER", type=Path, help="made if it is not there; none: left out")
    parser.add_argument("--sleep", action="store_true", help="also an engine that sleeps and wakes (Qwen3-TTS)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", nargs=3, metavar=("CASE", "FOLDER", "BUDGET"), help="what a child is told")
    parser.add_argument("--make", nargs=2, metavar=("CASE", "FOLDER"), help="the same")
    args = parser.parse_args()
    if args.make:
        make(CASES[args.make[0]], Path(args.make[1]))
        return 0
    if args.engine:
        case, folder, budget = args.engine
        if budget == "asleep":
            print(json.dumps(sleep_and_wake(CASES[case], Path(folder))), flush=True)
        else:
            print(json.dumps(measure(CASES[case], Path(folder), None if budget == "all" else budget)), flush=True)
        return 0
    report, kept = {}, []
    for name, case in CASES.items():
        folder = getattr(args, name)
        if folder is None:
            continue
        if not (folder / "config.json").exists():
            subprocess.run([sys.executable, __file__, "--make", name, str(folder)], check=True, timeout=300)
        found = {budget: in_a_process(name, folder, budget) for budget in ("all", "100GiB", case.budget)}
        report[name] = found
        kept += promises(name, case, found["all"], found["100GiB"], found[case.budget])
        if args.sleep and name == "qwen":
            kept += slept(name, in_a_process(name, folder, "asleep"), found["all"])
    for words, holds in kept:
        print("PASS" if holds else "FAIL", words)
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1))
    return 0 if all(holds for _, holds in kept) else 1


def make(case: Case, folder: Path) -> None:
    from sonant.models.registry import family_module

    began_s = time.perf_counter()
    write: Callable[..., None] = family_module(case.family, "synthetic").write_checkpoint
    write(folder, kind=case.kind, size=case.size, device=torch.device("cuda"))
    print(f"wrote {folder} in {time.perf_counter() - began_s:.1f} s", flush=True)


def in_a_process(name: str, folder: Path, budget: str) -> dict[str, Any]:
    began_s = time.perf_counter()
    command = [sys.executable, __file__, "--engine", name, str(folder), budget]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"{name} with {budget} failed; see above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"== {name}, gpu_weights {budget}: {time.perf_counter() - began_s:.1f} s in all", flush=True)
    for key, value in found.items():
        print(f"    {key}: {round(value, 4) if isinstance(value, float) else value}", flush=True)
    return found


def promises(
    name: str, case: Case, whole: dict[str, Any], large: dict[str, Any], paged: dict[str, Any]
) -> list[tuple[str, bool]]:
    step, floor = paged["step_ms"]["1"], paged["floor_ms"]
    host = (paged["host_peak_bytes"] - whole["host_peak_bytes"]) / paged["host_weight_bytes"]  # libraries cancel out
    kept = [
        (f"{name}: paged says the same to the bit, alone and among others", paged["said"] == whole["said"]),
        (f"{name}: a budget for all is no paging", not large["paged"] and large["said"] == whole["said"]),
        (
            f"{name}: a budget for all costs nothing: {large['step_ms']['1']:.3f} and {whole['step_ms']['1']:.3f} ms",
            large["step_ms"]["1"] <= 1.03 * whole["step_ms"]["1"],
        ),
        (f"{name}: a step of {step:.2f} ms is within {SLACK} of its floor of {floor:.2f} ms", step <= SLACK * floor),
        (f"{name}: host memory at its peak is {host:.3f} of the paged bytes", host <= 1.1),
        (f"{name}: {case.listeners} listeners: RTF {paged['rtf']:.3f}, {paged['with_gaps']} with gaps",
         paged["rtf"] < 1 and paged["with_gaps"] == 0),
    ]  # fmt: skip
    if name == "higgs":
        ratio, first, all_told = step / whole["step_ms"]["1"], paged["first_sound_ms"], paged["gpu_gib_after"]
        kept += [
            (f"{name}: a frame takes {ratio:.3f} of what it takes unpaged", ratio <= 1.1),
            (f"{name}: first sound after {first:.0f} ms", first < 200),
            (f"{name}: {all_told:.2f} GiB of the GPU all told, context included", all_told <= 6.5),
        ]
    return kept


def slept(name: str, found: dict[str, Any], whole: dict[str, Any]) -> list[tuple[str, bool]]:
    awake, asleep = found["awake_gib"], found["asleep_gib"]
    return [
        (f"{name}: awake it has {awake:.2f} GiB of the card, asleep {asleep:.2f}", asleep < awake / 2),
        (f"{name}: awake again and two frames after {found['first_words_ms']:.0f} ms", found["first_words_ms"] < 2000),
        (f"{name}: says the same before and after", found["said"] == found["said_again"] == whole["said"]),
    ]


def measure(case: Case, folder: Path, budget: str | None) -> dict[str, Any]:
    import sonant
    from sonant import EngineConfig
    from sonant.bench.engine import offline
    from sonant.engine import graphs

    bandwidth = offline.copy_bandwidth(torch.device("cuda"))
    offline.copy_bandwidth = lambda device: bandwidth  # measured later, its memory would count as the engine's
    torch.cuda.empty_cache()
    if budget == case.budget and case.most_gib is not None:
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction((case.most_gib * GIB - (total - free)) / total)
        graphs._PLENTY_BYTES = 1 << 60  # as on a small GPU: no freed memory is kept that a capture could need
    before = resident_bytes()
    config = EngineConfig(chunk_s=(0.08, 0.32), gpu_weights=budget, **case.options)
    began_s = time.perf_counter()
    with sonant.load(folder, device="cuda", config=config) as engine:
        found: dict[str, Any] = {"load_s": time.perf_counter() - began_s, "paged": engine.weight_floor is not None}
        found["host_peak_bytes"], found["host_weight_bytes"] = peak_bytes() - before, engine.host_weight_bytes
        found["gpu_gib"] = gpu_bytes() / GIB
        found["torch_gib"] = torch.cuda.max_memory_reserved() / GIB
        floor = engine.weight_floor
        found["floor_ms"] = 1000 * floor.seconds if floor is not None else 0.0
        found["floor"] = str(floor)
        found["step_ms"] = {str(rows): step_ms(engine, rows) for rows in (1, case.listeners)}
        found |= listen_together(engine, case.listeners)
        totals = engine.telemetry.paged
        found["wait_share"] = totals.wait_s / totals.pass_s if totals.pass_s else 0.0
        found["said"] = said(engine)
        found["gpu_gib_after"] = gpu_bytes() / GIB
        found["torch_gib_after"] = torch.cuda.memory_reserved() / GIB
        found["allocated_gib_after"] = torch.cuda.memory_allocated() / GIB
    return found


def sleep_and_wake(case: Case, folder: Path) -> dict[str, Any]:
    """Measure an engine that falls asleep because another one wants its seat, and that speaks again afterwards."""
    import tempfile

    import sonant
    from sonant import EngineConfig
    from sonant.engine.seats import Seats

    with tempfile.TemporaryDirectory() as place:
        mine, other = (Seats(Path(place), 1, name) for name in ("mine", "other"))
        config = EngineConfig(chunk_s=(0.08, 0.32), **case.options)
        with sonant.load(folder, device="cuda", config=config, seats=mine) as engine:
            found: dict[str, Any] = {"awake_gib": gpu_bytes() / GIB, "said": said(engine)}
            while not other.take():
                time.sleep(0.01)
            found["asleep_gib"] = gpu_bytes() / GIB
            other.close()
            began_s = time.perf_counter()
            engine.speak("hello there", seed=1, max_frames=2)
            found["first_words_ms"] = 1000 * (time.perf_counter() - began_s)
            found["said_again"] = said(engine)
    return found


def step_ms(engine: Any, rows: int) -> float:
    """ms of a frame step on the device without listeners: of the scratch row, `rows` times."""
    runner = engine.loop.runner
    step, batch = runner.frame[runner.model.spec.usual_variant], [runner.rows.scratch] * rows
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.inference_mode():
        for _ in range(3):
            step(batch)
        began.record()
        for _ in range(10):
            step(batch)
        ended.record()
    torch.cuda.synchronize()
    return began.elapsed_time(ended) / 10


def listen_together(engine: Any, count: int) -> dict[str, Any]:
    from sonant.bench.engine.offline import run

    level = run(engine, [count], frames=100).levels[0]
    alone = run(engine, [1], frames=16).levels[0]
    return {
        "rtf": level.rtf_p99, "frame_ms": level.frame_ms, "with_gaps": level.streams_with_gaps,
        "first_sound_ms": alone.first_audio_p50_ms,
    }  # fmt: skip


def said(engine: Any) -> str:
    """A digest of the speech of single requests, then of some that come and go at given steps."""
    from engine.scripted_traffic import arrivals, heard

    class Requests:
        def request(self, n: int) -> dict[str, Any]:
            text = ("hello there", "a somewhat longer sentence, with a comma.", "one, two, three and four")[n % 3]
            return {"text": text, "seed": 100 + n, "max_frames": 8 + 4 * (n % 4)}

    family: Any = Requests()
    digest = sha256()
    for n in range(3):
        speech = engine.speak(**family.request(n))
        digest.update(speech.frames.tobytes() + speech.samples.tobytes())
    for frames, samples in heard(engine, family, arrivals(seed=3, count=engine.stats().rows)):
        digest.update(frames.tobytes() + samples.tobytes())
    return digest.hexdigest()


def gpu_bytes() -> int:
    """Memory in use on the GPU by all processes; there should be no other."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def resident_bytes() -> int:
    return status("VmRSS")


def peak_bytes() -> int:
    return status("VmHWM")


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    sys.exit(main())
