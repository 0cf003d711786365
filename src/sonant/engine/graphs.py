"""CUDA graphs of the model's steps, one for each batch size: a replay costs the host one launch.

A step takes row indices and nothing else, so a graph needs one static input. Smaller batches are padded with the
scratch row, larger ones replayed several times: rows do not depend on each other. Graphs share a memory pool, where one
may overwrite what another left: results are copied to memory of their own, and graphs that may run at once have
different pools. On the CPU, and for batches that would take too many replays, the same steps run eagerly.

The smallest graph of a step is captured after an eager run, and so is one that comes before all smaller ones because
their kernels are not compiled yet. The run shows what the step returns, lets libraries make their handles and scratch
memory, and gets done what a capture must not do. All others are captured without one wherever that works, since those
runs took half of a start's time.

A prefill takes packed prompts. Its graphs have a fixed number of prompts and of positions for each, of which the unused
go to scratch memory; so a listener's first sound does not wait for hundreds of launches. Prompts longer than any graph
takes are prefilled eagerly, at their own size.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sonant.device_copy import send_into, to_device
from sonant.models.base import PrefillItem, PrefillShape, SpeechModel

logger = logging.getLogger(__name__)

Run = Callable[[Tensor], Tensor]
RowIndices = Sequence[int] | npt.NDArray[np.intp]
Prefill = Callable[[Tensor, PrefillShape], None]
Bucket = tuple[int, int, int]  # prompts, positions of each, and their kind

PREFILL_SIZES = (
    (1, 32), (1, 64), (1, 128), (1, 256), (4, 32), (4, 64), (4, 128), (16, 16), (16, 32), (16, 48), (16, 64), (16, 128),
    (64, 16), (64, 32),
)  # fmt: skip

_CAPTURING = threading.Lock()  # a CUDA context allows one capture at a time, whoever asks for it
_MOST_REPLAYS = 8  # an eager step costs the host about as much as this many replays cost the device
_PREFILL_POSITIONS = 400  # take as long as reading all weights, which any prefill does
_PLENTY_BYTES = 8 << 30  # of free memory
_EAGER_POSITIONS = (8, 264, 272)  # lengths of the eager prefills of `compile`


@dataclass(frozen=True)
class CapturedGraph:
    graph: torch.cuda.CUDAGraph
    given: Tensor  # the one static input: row indices, or packed prompts
    out: Tensor

    def replay(self, values: npt.NDArray[Any]) -> Tensor:
        """Replay on these values, sent without waiting. The result holds until the next replay."""
        send_into(values, self.given)
        self.graph.replay()
        return self.out


class GraphPool:
    """Where graphs are captured: memory that all work in, and one stream, since libraries keep scratch for each."""

    def __init__(self, device: torch.device, runs_first: bool = False, priority: int = 0) -> None:
        """`runs_first`: every capture comes after an eager run, for steps of which a part goes on outside of the graph.

        `priority` is that of the kernels: torch's graphs keep that of the stream that they were captured on.
        """
        self.runs_first = runs_first
        self._memory, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device, priority=priority)

    def has_plenty(self) -> bool:
        """Whether more is free than any graph asks for."""
        return torch.cuda.mem_get_info(self._stream.device)[0] >= _PLENTY_BYTES

    @contextmanager
    def capturing(self, graph: torch.cuda.CUDAGraph, mode: str) -> Iterator[None]:
        """As `torch.cuda.graph`, which would also empty the cache of pinned memory that `reserve_pinned` has filled:
        then steps would have to ask the driver for more."""
        if not self.has_plenty():
            torch.cuda.empty_cache()  # The pool cannot use what eager runs keep. Giving that back takes time.
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._memory, capture_error_mode=mode)
            try:
                try:
                    yield
                finally:
                    graph.capture_end()
            except RuntimeError:  # Torch may go on recording there, or think it unused.
                self._memory = torch.cuda.graph_pool_handle()
                raise


def synchronize(device: torch.device) -> None:
    """Wait for all work of a CUDA device. That is an error while any thread captures, so wait for captures first."""
    with _CAPTURING:
        torch.cuda.synchronize(device)


def capture_graph(name: str, run: Run, given: Tensor, pool: GraphPool, like: Tensor | None = None) -> CapturedGraph:
    """`like` is what a smaller size of this step returned; None: none was run yet."""
    start = time.perf_counter()
    with _CAPTURING:
        captured = None if like is None or pool.runs_first else _capture_at_once(name, run, given, pool, like)
        captured = captured or _capture_after_a_run(run, given, pool)
    logger.debug("captured %s in %.3f s", name, time.perf_counter() - start)
    return captured


def _capture_after_a_run(run: Run, given: Tensor, pool: GraphPool) -> CapturedGraph:
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(run(given))
    torch.cuda.synchronize(given.device)
    # What other threads do, which may be encoding a voice, must not spoil the capture.
    with pool.capturing(graph, "thread_local"):
        out.copy_(run(given))
    return CapturedGraph(graph, given, out)


def _capture_at_once(name: str, run: Run, given: Tensor, pool: GraphPool, like: Tensor) -> CapturedGraph | None:
    """None: it must be run before, since something in it cannot be captured yet."""
    graph, out = torch.cuda.CUDAGraph(), like.new_empty(len(given), *like.shape[1:])
    torch.cuda.synchronize(given.device)  # until `given` has arrived
    try:
        # Relaxed: a kernel or memory that no smaller size needed may be fetched during the capture.
        with pool.capturing(graph, "relaxed"):
            out.copy_(run(given))
    except RuntimeError as e:
        logger.debug("%s is run before it is captured: %s", name, e)
        return None
    return CapturedGraph(graph, given, out)


class GraphedStep:
    """One kind of step at every bucket size. `run` takes rows [B] and returns [B, …]."""

    def __init__(
        self, name: str, run: Run, device: torch.device, scratch_row: int, pool: GraphPool | None = None
    ) -> None:
        """`pool`: its own, if it may run beside other graphs."""
        self.name, self.run, self.device, self.scratch_row, self.pool = name, run, device, scratch_row, pool
        self.captured: dict[int, CapturedGraph] = {}
        self.replays = True

    def capture(self, buckets: Iterable[int], pool: GraphPool) -> None:
        """What is run for this is run on the scratch row only."""
        for bucket in buckets:
            like = next((graph.out for smaller, graph in self.captured.items() if smaller < bucket), None)
            name = f"{self.name} for {bucket} rows"
            self.captured[bucket] = capture_graph(name, *self.captures(bucket), self.pool or pool, like)

    def captures(self, bucket: int) -> tuple[Run, Tensor]:
        """What is captured in a graph of this size, and its static input."""
        return self.run, torch.full((bucket,), self.scratch_row, device=self.device)

    def buckets_for(self, count: int) -> list[int]:
        """Captured sizes that together take `count` rows; empty: the step runs eagerly."""
        if not self.captured or not self.replays:
            return []
        largest, buckets = max(self.captured), []
        while count > 0:
            buckets.append(min((b for b in self.captured if b >= count), default=largest))
            count -= buckets[-1]
        return buckets if len(buckets) <= _MOST_REPLAYS else []

    def __call__(self, rows: RowIndices) -> Tensor:
        buckets = self.buckets_for(len(rows))
        if not buckets:
            return self.run(to_device(np.array(rows), self.device))
        if len(buckets) == 1:
            return self._replay(buckets[0], rows)
        outs = []
        for bucket in buckets:
            outs.append(self._replay(bucket, rows[:bucket]).clone())  # the next replay may overwrite it
            rows = rows[bucket:]
        return torch.cat(outs)

    def _replay(self, bucket: int, rows: RowIndices) -> Tensor:
        step = self.captured[bucket]
        padded = np.full(bucket, self.scratch_row)
        padded[: len(rows)] = rows
        return step.replay(padded)[: len(rows)]


def buckets_up_to(largest: int) -> list[int]:
    """1, 2, 4, 8, then steps of about a quarter, so that padding wastes little; the last is `largest`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < largest:
        step = max(8, 1 << (sizes[-1].bit_length() - 2))
        sizes.append(sizes[-1] + step)
    return [s for s in sizes if s < largest] + [largest]


class PrefillGraphs:
    name = "prefill"

    def __init__(
        self, model: SpeechModel, prefill: Prefill, block_tokens: int, table_blocks: int, device: torch.device
    ) -> None:
        """`prefill` is the model's own, or one that brings weights along with it."""
        self.model, self.prefill = model, prefill
        self.block_tokens, self.table_blocks, self.device = block_tokens, table_blocks, device
        self.captured: dict[Bucket, CapturedGraph] = {}
        self.replays = True

    def capture(self, buckets: Iterable[Bucket], pool: GraphPool) -> None:
        for bucket in buckets:
            prompts, positions, kind = bucket
            name = f"prefill of {prompts} × {positions}" + (f" ({kind})" if kind else "")
            run, given = self.captures(bucket)
            known = any(kind == other and (n, length) < (prompts, positions) for n, length, other in self.captured)
            self.captured[bucket] = capture_graph(name, run, given, pool, given if known else None)

    def captures(self, bucket: Bucket) -> tuple[Run, Tensor]:
        shape = self._shape(bucket)
        return partial(self._run, shape=shape), to_device(self.model.pack([], shape), self.device)

    def compile(self) -> None:
        """Run eager prefills into scratch memory, so that no listener waits for kernels to be compiled.

        Of the lengths over any graph's one is a multiple of 16 and one is not, since kernels differ by that.
        """
        for kind in self.model.spec.prefill_kinds:
            for positions in _EAGER_POSITIONS:
                self._eager([], PrefillShape(1, positions, -(-positions // self.block_tokens), kind))

    def __call__(self, items: Sequence[PrefillItem]) -> None:
        kinds: defaultdict[int, list[tuple[int, PrefillItem]]] = defaultdict(list)
        for item in items:
            positions, kind = self.model.packed_size(item)
            kinds[kind].append((positions, item))
        for kind, sized in kinds.items():
            buckets = [b for b in self.captured if b[2] == kind and self.replays]
            longest = max((positions for _, positions, _ in buckets), default=-1)
            self._replay(sorted((s for s in sized if s[0] <= longest), key=lambda s: s[0]), buckets)
            if eager := [s for s in sized if s[0] > longest]:
                span_blocks = max(1, -(-max(item.end for _, item in eager) // self.block_tokens))
                shape = PrefillShape(len(eager), max(1, *(positions for positions, _ in eager)), span_blocks, kind)
                self._eager([item for _, item in eager], shape)

    def _replay(self, sized: list[tuple[int, PrefillItem]], buckets: list[Bucket]) -> None:
        """Shortest first, each time in the graph that costs least for each prompt that it takes."""
        lengths = [positions for positions, _ in sized]
        while lengths:
            counts = [min(prompts, bisect_right(lengths, positions)) for prompts, positions, _ in buckets]
            fits = [(cost(b) / count, -count, b) for b, count in zip(buckets, counts, strict=True) if count]
            _, fewer, bucket = min(fits)
            self.captured[bucket].replay(self.model.pack([item for _, item in sized[:-fewer]], self._shape(bucket)))
            sized, lengths = sized[-fewer:], lengths[-fewer:]

    def _shape(self, bucket: Bucket) -> PrefillShape:
        prompts, positions, kind = bucket
        return PrefillShape(prompts, positions, self.table_blocks, kind)  # a graph must do for every length

    def _eager(self, items: Sequence[PrefillItem], shape: PrefillShape) -> None:
        self.prefill(to_device(self.model.pack(items, shape), self.device), shape)

    def _run(self, packed: Tensor, shape: PrefillShape) -> Tensor:
        self.prefill(packed, shape)
        return packed


def cost(bucket: Bucket) -> int:
    """What a graph of a prefill takes, in positions' time."""
    prompts, positions, _ = bucket
    return _PREFILL_POSITIONS + prompts * positions
