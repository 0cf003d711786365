"""An engine whose steps are all replays, padded or several for a batch, speaks as an eager one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from clips import reference_clip
from engine.conftest import MakeEngine
from engine.families import QWEN3_TTS, same
from engine.replayed_steps import capture_graph
from sonant import Engine
from sonant.engine import graphs, step_graphs
from sonant.engine.graph_warmup import GraphWarmup
from sonant.engine.graphs import GraphedStep, PrefillGraphs
from sonant.engine.step_graphs import StepGraphs
from sonant.models.base import PrefillItem, PrefillShape
from sonant.models.status import Status

BUCKETS = ((1, 32), (1, 64), (1, 128), (4, 64), (16, 16), (16, 64))  # prompts and positions; an engine has more


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "capture_graph", capture_graph)


@pytest.fixture
def replaying(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> MakeEngine:
    """Like `make_engine`, with all graphs of up to four rows captured."""

    def make(*args: Any, **options: Any) -> Engine:
        with monkeypatch.context() as patch:
            patch.setattr(StepGraphs, "_warmup", lambda self: GraphWarmup(self.wanted(), None))
            patch.setattr(step_graphs, "PREFILL_SIZES", BUCKETS)
            engine = make_engine(*args, **{"warm_rows": 4, "max_rows": 4, **options})
        assert engine.warm_share > 0
        return engine

    return make


def eager_prefills(engine: Engine) -> list[PrefillItem]:
    """A list of the prompts that are prefilled without a graph from now on."""
    seen: list[PrefillItem] = []
    prefill = engine.loop.runner.prefill
    eager = prefill._eager

    def watched(items: Sequence[PrefillItem], shape: PrefillShape) -> None:
        seen.extend(items)
        eager(items, shape)

    prefill._eager = watched  # type: ignore[method-assign]
    return seen


def test_a_crowd_of_requests(make_engine: MakeEngine, replaying: MakeEngine) -> None:
    plain, engine = make_engine(max_rows=8), replaying(max_rows=8, block_tokens=4)
    expected = [plain.speak(**QWEN3_TTS.request(n)) for n in range(8)]
    eager = eager_prefills(engine)
    for _ in range(2):  # the second time the prefixes are in the cache
        streams = [engine.stream(**QWEN3_TTS.request(n)) for n in range(8)]
        for speech, stream in zip(expected, streams, strict=True):
            same(speech, stream.result())
    assert eager == []


@pytest.mark.parametrize(
    ("lengths", "replayed"),
    [
        ([3], [(1, 32)]),
        ([0, 40], [(4, 64)]),
        ([12] * 5, [(16, 16)]),
        ([12] * 20, [(16, 16), (4, 32)]),
        ([12] * 40, [(64, 16)]),
        ([12] * 100, [(64, 16), (64, 16)]),
        ([12] * 60 + [30] * 4, [(64, 16), (4, 32)]),
        ([12] * 15 + [250], [(16, 16), (1, 256)]),
        ([130, 300, 12], [(1, 32), (1, 256), "eager"]),
    ],
)
def test_prompts_share_graphs_that_take_the_least_time(lengths: list[int], replayed: list[object]) -> None:
    """Every prompt is prefilled once, and none in a graph that is too short for it."""
    done: list[object] = []
    filled: list[Item] = []

    class Item(NamedTuple):
        number: int
        end: int

    class Model:
        def packed_size(self, item: Item) -> tuple[int, int]:
            return item.end, 0

        def pack(self, items: Sequence[Item], shape: PrefillShape) -> PrefillShape:
            assert len(items) <= shape.prompts and all(item.end <= shape.positions for item in items)
            filled.extend(items)
            return shape

    class Graph:
        def replay(self, packed: PrefillShape) -> None:
            done.append((packed.prompts, packed.positions))

    prefill = PrefillGraphs(Model(), lambda *_: None, 16, 8, torch.device("cpu"))  # type: ignore[arg-type]
    prefill.captured = {(*size, 0): Graph() for size in graphs.PREFILL_SIZES}  # type: ignore[misc]
    prefill._eager = lambda items, _: done.append(filled.extend(items) or "eager")  # type: ignore
    prefill([Item(n, lengths[n]) for n in range(len(lengths))])  # type: ignore[misc]
    assert done == replayed and sorted(item.number for item in filled) == list(range(len(lengths)))


def test_all_graphs_come_first_where_all_rows_are_to_be_warm(replaying: MakeEngine) -> None:
    for rows in (1, 3):
        assert replaying(max_rows=rows, warm_rows=rows).warm_share == 1


def test_a_designed_voice(make_engine: MakeEngine, replaying: MakeEngine) -> None:
    said: dict[str, Any] = {"text": "hello the world", "instruct": "hello user", "seed": 3, "max_frames": 6}
    same(make_engine("design").speak(**said), replaying("design").speak(**said))


def test_a_cloned_voice(make_engine: MakeEngine, replaying: MakeEngine) -> None:
    plain, engine = make_engine("base"), replaying("base")
    eager = eager_prefills(engine)
    for text in (None, "speech and the user"):
        voice = plain.clone(reference_clip(), text)
        for streaming in (True, False):
            said: dict[str, Any] = {"text": "hello the world", "voice": voice, "streaming_text": streaming, "seed": 3}
            same(plain.speak(**said, max_frames=6), engine.speak(**said, max_frames=6))
    assert eager == []


def test_a_prompt_in_several_steps_is_replayed_too(make_engine: MakeEngine, replaying: MakeEngine) -> None:
    said: dict[str, Any] = {"text": "on and on and on the world speech hello again", "seed": 3, "max_frames": 6}
    engine = replaying(prefill_tokens=2)
    eager = eager_prefills(engine)
    same(make_engine().speak(**said), engine.speak(**said))
    assert eager == []


def test_a_prompt_longer_than_every_graph_is_prefilled_all_the_same(
    make_engine: MakeEngine, replaying: MakeEngine
) -> None:
    said: dict[str, Any] = {"text": "hello " * 150, "seed": 3, "max_frames": 3, "streaming_text": False}
    plain, engine = (make(segment_chars=2000) for make in (make_engine, replaying))
    eager = eager_prefills(engine)
    same(plain.speak(**said), engine.speak(**said))
    assert [item.last for item in eager] == [True]


def test_uninitialised_memory_is_not_heard_through_padding(make_engine: MakeEngine, replaying: MakeEngine) -> None:
    expected = [make_engine().speak(**QWEN3_TTS.request(n)) for n in range(3)]
    engine = replaying()
    for cache in engine.loop.runner.kv.values():
        cache.fill_(float("nan"))
    streams = [engine.stream(**QWEN3_TTS.request(n)) for n in range(3)]
    for speech, stream in zip(expected, streams, strict=True):
        same(speech, stream.result())


def test_padding_never_moves_on(replaying: MakeEngine) -> None:
    engine = replaying()
    engine.speak(**QWEN3_TTS.request(3))
    fields = engine.loop.runner.rows.fields
    assert [int(fields[name][-1]) for name in ("status", "position", "frame")] == [Status.STOPPED, 0, 0]


def square(batches: list[int]) -> Callable[[Tensor], Tensor]:
    def run(rows: Tensor) -> Tensor:
        batches.append(len(rows))
        return (rows * rows)[:, None]

    return run


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ((), 5, [5]),
        ((1, 2, 4, 8), 3, [4]),
        ((1, 2, 4, 8), 8, [8]),
        ((1, 2, 4, 8), 19, [8, 8, 4]),
        ((8, 16, 24, 32), 40, [32, 8]),
        ((8, 16), 40, [16, 16, 8]),
        ((1, 2, 4, 8), 80, [80]),  # too many pieces: it runs eagerly
    ],
)
def test_a_batch_past_the_largest_graph_is_replayed_in_pieces(
    sizes: tuple[int, ...], count: int, expected: list[int]
) -> None:
    batches: list[int] = []
    step = GraphedStep("square", square(batches), torch.device("cpu"), scratch_row=99)
    step.capture(sizes, None)
    batches.clear()
    assert step(list(range(count))).tolist() == [[n * n] for n in range(count)]
    assert batches == expected


def test_a_step_that_is_looked_at_is_not_replayed() -> None:
    batches: list[int] = []
    step = GraphedStep("square", square(batches), torch.device("cpu"), scratch_row=99)
    step.capture([4], None)
    step.replays = False
    assert step([1, 2]).tolist() == [[1], [4]]
    assert batches == [4, 2]


def test_a_small_engine_captures_no_prefill_that_no_step_asks_for(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepGraphs, "_warmup", lambda self: GraphWarmup(self.wanted(), None))
    engine = make_engine(warm_rows=2, max_rows=2, prefill_tokens=16)
    captured = {bucket[:2] for bucket in engine.loop.runner.prefill.captured}
    assert captured == {(1, 32), (1, 64), (1, 128), (1, 256)}
    engine = make_engine(warm_rows=2, max_rows=2, prefill_tokens=64)
    assert {bucket[:2] for bucket in engine.loop.runner.prefill.captured} == captured | {(4, 32), (4, 64)}
