"""A stack in one launch, on a GPU: build, check against float64 and Triton's kernels, measure.

    PYTHONPATH=src:tests python3 tests/gpu_stack.py                # everything, less than a minute
    PYTHONPATH=src:tests python3 tests/gpu_stack.py --phase time   # one phase, in this process

Each phase is a process with a time limit, so a kernel that hangs ends only its own phase. The exit code is 1 if any was
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.stack_cases import StackCase, error_of, exact
from sonant.kernels import dispatch, reference
from sonant.kernels.cuda import compiler, driver, stack
from sonant.kernels.cuda.kernel import _function
from sonant.kernels.gpu import gpu_of
from sonant.kernels.reference import LocalWeights
from sonant.kernels.triton import local_stack as chain

CUDA = torch.device("cuda")
LIMIT_S = 35.0
FLOW = StackCase(1024, 4096, 16, 2, 12, 2, 11)
ENCODER = StackCase(1024, 4096, 16, 2, 12, 1, 5)
OTHERS = ((1, 1), (3, 5), (2, 16), (6, 5), (5, 6), (8, 4))  # sequences, steps of each
SHAPES = [FLOW, ENCODER, *(StackCase(1024, 4096, 16, 2, 2, *shape) for shape in OTHERS)]
PACES = ((1000, 16), (300, 16), (600, 16), (1500, 16), (2500, 16), (1000, 4), (1, 16), (1, 4))  # cycles, chunks
MARKED = (1000, 2500)  # paces, in cycles, for which it is shown where the time goes
MARKS = ("input", "product", "landing", "end", "barrier")
STEPS = ("qkv", "attention, out", "gate/up", "down")
WRONG = "WRONG: "


def say(text: str) -> None:
    print(text, flush=True)


def judge(fine: bool, text: str) -> None:
    say(text if fine else WRONG + text)


def forms() -> list[stack.Form]:
    usual = [stack.Form(1024, 4096, 16, 2, tiles) for tiles in (1, 2, 3, 4)]
    others = [stack.Form(1024, 4096, 16, 2, 3, ahead=ahead, pace=pace) for pace, ahead in PACES[1:]]
    return [*usual, *others, *(stack.Form(1024, 4096, 16, 2, 3, pace=pace, marked=True) for pace in MARKED)]


def build_phase() -> None:
    gpu = gpu_of(CUDA)
    assert gpu is not None
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda form: compiler.build(stack.stack_kernel(form).program, gpu.arch), forms()))
    say(f"{gpu.name}, torch {torch.__version__}, {compiler.find_compiler()}: built in {time.monotonic() - began:.1f} s")
    for form in forms():
        judge(stack.stack_kernel(form).is_ready(CUDA), f"{form} loads, and all of it fits")


def check_phase() -> None:
    for case in SHAPES:
        weights, x = case.weights(1, "cuda"), case.rows(1, "cuda")
        assert stack.refusal(x, weights) is None
        expected = exact(x, weights)
        plain = error_of(reference.local_stack(x.clone(), weights), expected)
        theirs = error_of(chain.local_stack(x.clone(), weights), expected)
        first = stack.local_stack(x.clone(), weights)
        torch.cuda.synchronize()
        ours = error_of(first, expected)
        same = all(torch.equal(stack.local_stack(x.clone(), weights), first) for _ in range(10))
        text = f"{case.sequences} x {case.steps}, {case.layers} layers: from float64 {ours:.4f}, torch {plain:.4f}"
        text += f", Triton {theirs:.4f}; ten times {'the same bits' if same else 'DIFFERENT'}"
        judge(ours < 1.3 * plain and same, text)


def graph_phase() -> None:
    """Check replays back to back, and two stacks at once on two streams: no hang, and the same bits."""
    cases = [FLOW.weights(seed, "cuda") for seed in (1, 2)]
    rows = [FLOW.rows(seed, "cuda") for seed in (1, 2)]
    wanted = [stack.local_stack(x.clone(), w) for x, w in zip(rows, cases, strict=True)]
    torch.cuda.synchronize()
    graphs, outs = [], []
    for x, weights in zip(rows, cases, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append([stack.local_stack(x.clone(), weights) for _ in range(3)])
        graphs.append(graph)
    for _ in range(50):
        graphs[0].replay()
    torch.cuda.synchronize()
    judge(all(torch.equal(out, wanted[0]) for out in outs[0]), "50 replays of three passes: the same bits")
    streams = [torch.cuda.Stream() for _ in graphs]
    began = time.monotonic()
    for _ in range(100):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    fine = all(torch.equal(out, w) for made, w in zip(outs, wanted, strict=True) for out in made)
    judge(fine, f"two graphs at once, 100 times: the same bits, {1e6 * (time.monotonic() - began) / 600:.1f} us a pass")


def pass_us(run: Callable[[], object], passes: int = 9) -> float:
    """Microseconds of one pass in a graph of several."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(passes):
            run()
    times = []
    for _ in range(15):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / passes)
    return statistics.median(times)


def attributes(cooperative: bool, early: bool) -> Any:
    size = driver.BlockSize(0, 0, stack.Grid().ranks, int(cooperative))
    return driver._attributes(size, early=early)


def ways(case: StackCase, weights: Sequence[LocalWeights]) -> None:
    x = case.rows(1, "cuda")
    moved = sum(t.numel() * 2 for w in weights for t in (w.qkv, w.out, w.gate_up, w.down))
    floor = moved / 4.4e6
    say(f"{case.sequences} x {case.steps} rows: floor {floor:.1f} us a pass, {floor / case.layers:.1f} a layer")

    def tell(name: str, run: Callable[[], object]) -> None:
        try:
            us = pass_us(run)
            say(f"  {name}: {us:.1f} us a pass, {us / case.layers:.2f} a layer")
        except RuntimeError as error:  # a capture may refuse what a stream accepts
            say(f"  {name}: {WRONG}{' '.join(str(error).split())[:200]}")

    tell("Triton's chain", lambda: chain.local_stack(x, weights))
    for n, (pace, ahead) in enumerate(PACES if case is FLOW else PACES[:1]):
        grid = stack.Grid(ahead=ahead, pace=pace)
        function = _function(stack.stack_kernel(stack.Form.of(x, weights[0], grid)), 0)
        if function is None:
            judge(False, "it does not run here")
            return
        for cooperative, early in ((True, True), (True, False), (False, True), (False, False)):
            if n and not (cooperative and early):
                continue
            function._attributes = attributes(cooperative, early)
            stack.local_stack(x, weights, grid=grid)
            kept = len(function._attributes) == 1 + cooperative + early
            told = f"cooperative {cooperative}, early {early if kept else 'REFUSED'}"
            name = f"one launch, pace {pace}, {ahead} chunks, {told}"
            tell(name, partial(stack.local_stack, x, weights, grid=grid))
        function._attributes = attributes(True, True)


def marks_table(weights: Sequence[LocalWeights], pace: int) -> None:
    """Print where a step's time goes, in cycles: means over all blocks, and how long the last block waits at a
    barrier."""
    x = FLOW.rows(1, "cuda")
    marks = torch.zeros(128, 4 * 28, 6, dtype=torch.int64, device=CUDA)
    for _ in range(3):
        stack.local_stack(x, weights, grid=stack.Grid(pace=pace, marks=marks))
    torch.cuda.synchronize()
    say(f"pace {pace}:")
    seen = marks[:, : 4 * FLOW.layers].double().unflatten(1, (FLOW.layers, 4))  # [blocks, layers, steps, points]
    following = seen.flatten(1, 2)[:, 1:, 0]
    seen = seen.flatten(1, 2)[:, :-1]
    spans = torch.cat([seen[..., 1:5] - seen[..., :4], (following - seen[..., 4])[..., None]], -1) % 2**32
    for step, name in enumerate(STEPS):
        own = spans[:, 4 + step :: 4]  # without the first layer, whose weights were still in flight
        means, shortest = own.mean((0, 1)), own[..., 4].amin(0).mean()
        told = ", ".join(f"{what} {float(mean):.0f}" for what, mean in zip(MARKS, means, strict=True))
        say(f"  {name}: {told} (the last to come {float(shortest):.0f}); {float(means.sum()):.0f} cycles in all")


def time_phase() -> None:
    weights = FLOW.weights(1, "cuda")
    ways(FLOW, weights)
    for pace in MARKED:
        marks_table(weights, pace)
    ways(ENCODER, ENCODER.weights(2, "cuda"))


def model_phase() -> None:
    """Measure VoxCPM2's flow and local encoder as the engine runs them, for one listener and for two."""
    from sonant.models.voxcpm2.config import VoxCPM2Config
    from sonant.models.voxcpm2.flow import flow, schedule
    from sonant.models.voxcpm2.modules import Estimator, LocalEncoder
    from sonant.models.voxcpm2.synthetic.presets import model_config

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model_config("2b", 1000)))
        config = VoxCPM2Config.read(Path(folder))
    torch.manual_seed(1)
    with CUDA:
        estimator, encoder = Estimator(config).bfloat16(), LocalEncoder(config).bfloat16()
        estimator.decoder.prepare(2 * config.patch_size + 3)
        encoder.encoder.prepare(config.patch_size + 1)
        plan = schedule(estimator, 10)
    for rows in (1, 2):
        noise = torch.randn(rows, config.patch_size, config.feat_dim, device=CUDA)
        prefix = torch.randn(rows, 2, config.dit.hidden_dim, device=CUDA).bfloat16()
        before, guidance = torch.randn_like(noise), torch.full((rows,), 2.0, device=CUDA)
        draw = partial(flow, estimator, plan, noise, prefix, before, guidance)
        made: dict[str, tuple[Tensor, Tensor]] = {}
        for way in ("triton", "cuda"):
            os.environ[stack.VARIABLE] = way
            dispatch.choose.cache_clear()
            made[way] = draw(), encoder(noise)
            ms = pass_us(draw, 1) / 1e3, pass_us(partial(encoder, noise), 1) / 1e3
            say(f"{rows} listeners, {way}: flow {ms[0]:.3f} ms, local encoder {ms[1]:.3f} ms")
        errors = [error_of(ours, theirs) for ours, theirs in zip(made["cuda"], made["triton"], strict=True)]
        judge(max(errors) < 0.1, f"  from Triton's: flow {errors[0]:.4f}, local encoder {errors[1]:.4f}")


PHASES = {"build": build_phase, "check": check_phase, "graph": graph_phase, "time": time_phase, "model": model_phase}


def watched(phase: str, options: list[str]) -> bool:
    """Run a phase in a process of its own → whether it went well."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--phase", phase, *options], capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        told, code = done.stdout + done.stderr[-1500:] * (done.returncode != 0), done.returncode
    except subprocess.TimeoutExpired as error:
        told = error.stdout.decode() if isinstance(error.stdout, bytes) else str(error.stdout)
        code = -1
        told += f"\n{WRONG}{phase} took more than {LIMIT_S:g} s"
    say(f"== {phase}: {time.monotonic() - began:.1f} s\n{told.rstrip()}")
    return code == 0 and WRONG not in told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", choices=PHASES)
    parser.add_argument("--late", action="store_true", help="no early start, if a driver refuses it in graphs")
    args = parser.parse_args()
    if args.phase is None:
        fine = [watched(phase, ["--late"] * args.late) for phase in PHASES]
        return int(not all(fine))
    if args.late:
        usual = driver._attributes
        driver._attributes = lambda size, *, early: usual(size, early=early and not size.resident)
    with torch.inference_mode():
        PHASES[args.phase]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
