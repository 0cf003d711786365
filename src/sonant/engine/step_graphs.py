"""Which CUDA graphs an engine is to have, and when each is captured: before it answers, or between two of its steps.

Without memory for all of them it does with fewer: steps of larger batches then take several replays, or run eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import torch

from sonant.config import EngineConfig, FrameSizes
from sonant.engine.compile_ahead import CompileAhead, NothingAhead
from sonant.engine.graph_warmup import GraphWarmup, PendingGraph
from sonant.engine.graphs import PREFILL_SIZES, GraphedStep, GraphPool, PrefillGraphs, buckets_up_to, synchronize
from sonant.engine.scheduler import BURST
from sonant.engine.start_times import StartTimes
from sonant.models.spec import ModelSpec

logger = logging.getLogger(__name__)

_RARE_SIZES = 4  # one batch size in so many has a graph, and a single row; the others take the next larger
_NEEDED_ROWS = 8  # graphs up to this many rows must fit into memory, or the engine does not start


class StepGraphs:
    def __init__(
        self,
        prefill: PrefillGraphs,
        frame: Mapping[int, GraphedStep],
        codec: Mapping[int, GraphedStep],
        spec: ModelSpec,
        config: EngineConfig,
        sizes: FrameSizes,
        pool: GraphPool | None,
    ) -> None:
        """`frame` is by variant, `codec` by the frames of a chunk. `pool`: where they are captured; None: nowhere,
        since the device has no graphs."""
        self._prefill, self._frame, self._codec = prefill, frame, codec
        self._spec, self._config, self._sizes, self._pool = spec, config, sizes, pool
        self.warmup = self._warmup()

    def _warmup(self) -> GraphWarmup:
        return GraphWarmup(() if self._pool is None else self.wanted(), self._pool)

    def wanted(self) -> list[PendingGraph]:
        """All that an engine on a GPU is to have."""
        largest = self._config.max_batch
        assert largest is not None
        buckets = [(*size, kind) for kind in self._spec.prefill_kinds for size in self._prefill_sizes(largest)]
        graphs = [PendingGraph(self._prefill, bucket, min(bucket[0], largest)) for bucket in buckets]
        for variant, step in self._frame.items():
            sizes = buckets_up_to(largest)
            if variant != self._spec.usual_variant:  # rare, so a start does not wait for a graph of every size
                sizes = sorted({sizes[0], *sizes[-1::-_RARE_SIZES]})
            graphs += [PendingGraph(step, size, size) for size in sizes]
        for frames, step in self._codec.items():
            most = min(largest, self._sizes.codec_batch // frames)
            graphs += [PendingGraph(step, size, size) for size in buckets_up_to(most)]
        return graphs

    def _prefill_sizes(self, rows: int) -> list[tuple[int, int]]:
        """The sizes that steps of so many rows may ask for: on a small GPU there is no memory to spare for others."""
        most = BURST * self._config.prefill_tokens
        return [(n, length) for n, length in PREFILL_SIZES if n == 1 or (n <= 2 * rows and n * length <= most)]

    def rehearsal(self) -> list[Callable[[], object]]:
        """Every step that will be captured, to be run on the meta device, which shows what kernels it needs."""

        def run(wanted: PendingGraph) -> object:
            step, given = wanted.step.captures(wanted.bucket)
            return step(given)

        return [self._prefill.compile, *(partial(run, wanted) for wanted in GraphWarmup(self.wanted(), None).pending)]

    @torch.inference_mode()
    def capture_first(self, start: StartTimes, kernels: CompileAhead | NothingAhead) -> None:
        """Capture what must be there before the engine answers: in the order of `rehearsal`, except that those whose
        kernels are compiled already come first."""
        device = self._prefill.device
        if device.type == "cuda":
            synchronize(device)  # the weights came on another stream
        warm_rows, prefills_eagerly = self._config.warm_rows or 1, device.type == "cuda"
        while (left := self.warmup.up_to(warm_rows)) or prefills_eagerly:
            stages = [0] * prefills_eagerly + [graph.number + 1 for graph in left]
            skips = not kernels.over and self.warmup.may_skip
            start.took("graphs")
            stage = kernels.wait_for_any(stages if skips else stages[:1])
            start.took("kernels")
            if stage == 0:
                self._prefill.compile()
                prefills_eagerly = False
            else:
                self._capture_at_start(next(graph for graph in left if graph.number == stage - 1))
        if device.type == "cuda":
            synchronize(device)
        start.took("graphs")
        kernels.wait_for_all()  # a graph that is captured between two steps must not wait for a compiler
        start.took("kernels")

    def _capture_at_start(self, wanted: PendingGraph) -> None:
        try:
            self.warmup.capture(wanted)
        except RuntimeError:
            if wanted.rows <= _NEEDED_ROWS:
                raise
            self._stay_with_what_there_is(_NEEDED_ROWS)

    @torch.inference_mode()
    def capture_next(self) -> None:
        """Capture one more graph, while no step is in flight. Without memory for it, steps do with those there are."""
        try:
            self.warmup.capture_next()
        except RuntimeError:
            self._stay_with_what_there_is()

    def _stay_with_what_there_is(self, beyond: int = 0) -> None:
        """… and with those yet to come for at most `beyond` rows."""
        given_up = self.warmup.give_up(beyond)
        logger.warning("%d graphs are not captured; large batches take several replays", given_up, exc_info=True)

    def use(self, replay: bool) -> None:
        """False: every step runs eagerly, so that its operators can be seen."""
        self._prefill.replays = replay
        for step in (*self._frame.values(), *self._codec.values()):
            step.replays = replay
