"""Engines that take turns with a device's memory: an idle one sleeps, and speaks the same after it wakes up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import sonant
from clips import reference_clip
from engine.families import HIGGS_AUDIO_V2, QWEN3_TTS
from engine.test_weight_paging import least_of
from sonant import Engine, EngineConfig, Speech
from sonant.engine.beginning import Beginning
from sonant.engine.blocks import BlockPool
from sonant.engine.device_region import DeviceRegion
from sonant.engine.residents import Residents
from sonant.engine.seats import Seats
from sonant.engine.sleeper import Sleeper
from sonant.engine.start_times import StartTimes
from sonant.errors import EngineClosed, TooLate
from sonant.models.weight_blocks import ModelWeights
from toy_family.model import ToyModel
from waiting import until

OPTIONS = {"max_rows": 2, "chunk_s": (0.01,)}
CPU = torch.device("cpu")


def sleeper_of(engine: Engine) -> Sleeper:
    assert engine.loop.sleeper is not None
    return engine.loop.sleeper


def held(engine: Engine) -> int:
    """Bytes of an engine's weights and cache that are on the device."""
    residents = sleeper_of(engine).residents
    return sum(r.memory.untyped_storage().nbytes() for r in (residents._weights, *residents._caches))


@pytest.fixture(scope="module")
def two(
    tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Engine]]:
    """Two engines that share one seat. The first is asleep, since the other was loaded after it."""
    tmp_path = tmp_path_factory.mktemp("seats")
    higgs = tiny_checkpoints["higgs"]
    paged = EngineConfig(**OPTIONS, gpu_weights=str(least_of(higgs)))
    with (
        sonant.load(
            tiny_checkpoints["base"], device="cpu", config=EngineConfig(**OPTIONS), seats=Seats(tmp_path, 1, "a")
        ) as a,
        sonant.load(higgs, device="cpu", config=paged, seats=Seats(tmp_path, 1, "b")) as b,
    ):
        yield a, b


def same(a: Speech, b: Speech) -> None:
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.samples, b.samples)


def test_one_at_a_time_has_the_memory_and_says_what_it_always_says(
    two: tuple[Engine, Engine], tiny_checkpoints: Mapping[str, Path]
) -> None:
    a, b = two
    assert not sleeper_of(a).awake and held(a) == 0 and held(b) > 0 and sleeper_of(a).sleeps == 1
    with sonant.load(tiny_checkpoints["base"], device="cpu", config=EngineConfig(**OPTIONS)) as alone:
        voice = alone.clone(reference_clip(), "hello the world")
        mine = alone.speak("hello the world", voice=voice, seed=3, max_frames=6)
    with sonant.load(tiny_checkpoints["higgs"], device="cpu", config=EngineConfig(**OPTIONS)) as alone:
        others = alone.speak(**HIGGS_AUDIO_V2.request(1))
    assert a.clone(reference_clip(), "hello the world").tensors.keys() == voice.tensors.keys()  # it wakes up for a clip
    for _ in range(2):
        same(a.speak("hello the world", voice=voice, seed=3, max_frames=6), mine)
        assert held(b) == 0
        same(b.speak(**HIGGS_AUDIO_V2.request(1)), others)
        assert held(a) == 0
    assert sleeper_of(a).sleeps >= 2 and sleeper_of(b).sleeps >= 2


def test_who_speaks_does_not_lose_its_memory(two: tuple[Engine, Engine]) -> None:
    a, b = two
    sleeps = sleeper_of(b).sleeps
    stream = b.stream(**{**HIGGS_AUDIO_V2.request(1), "max_frames": 60})
    stream.read()
    heard: list[Speech] = []
    voiceless = threading.Thread(target=lambda: heard.append(a.clone(reference_clip())))  # type: ignore[arg-type]
    voiceless.start()
    assert stream.result().finish_reason is not None
    voiceless.join(20)
    assert heard and sleeper_of(b).sleeps == sleeps + 1


def test_who_never_needs_to_sleep_has_nothing_of_it(tiny_checkpoints: Mapping[str, Path]) -> None:
    with sonant.load(tiny_checkpoints["custom"], device="cpu", config=EngineConfig(max_rows=1)) as engine:
        assert engine.loop.sleeper is None
        engine.speak(**QWEN3_TTS.request(1))


def test_who_waits_too_long_for_one_that_sleeps_is_told_at_once(tmp_path: Path, opened: list[Engine]) -> None:
    """Their refusal is delivered though no step follows it, since nobody else keeps that engine awake."""
    mine, other = Seats(tmp_path, 1, "a"), Seats(tmp_path, 1, "b")
    assert mine.take() and not other.take()
    config, delivered = EngineConfig(), threading.Event()
    model = ToyModel(config, CPU)
    sleeper = Sleeper(Residents(model.weights(), CPU), mine)
    opened.append(engine := Engine(model, config, CPU, beginning=Beginning(StartTimes(), None, sleeper=sleeper)))
    until(other.take)
    engine.loop.after_delivery = lambda _: delivered.set()
    with pytest.raises(TooLate):
        engine.stream("hello", first_audio_within_s=0.05).result()
    assert delivered.wait(5) and not sleeper.awake


def test_an_engine_that_is_closed_asleep_lets_nobody_wait(tmp_path: Path) -> None:
    weights = ModelWeights((torch.nn.Linear(2, 2),))
    mine, other = Seats(tmp_path, 1, "a"), Seats(tmp_path, 1, "b")
    assert mine.take() and not other.take()
    sleeper = Sleeper(Residents(weights, CPU), mine)
    until(lambda: not sleeper.may_step(False))
    sleeper.close()
    with pytest.raises(EngineClosed), sleeper.held_awake():
        pass


def test_a_seat_is_given_back_with_its_memory(tmp_path: Path) -> None:
    """An engine that gets the seat allocates the memory at once, and would fail if it were still held."""
    layer = torch.nn.Linear(2, 2)
    mine, other = Seats(tmp_path, 1, "a"), Seats(tmp_path, 1, "b")
    assert mine.take()
    sleeper = Sleeper(Residents(ModelWeights((layer,)), CPU), mine)
    with sleeper.held_awake():
        closer = threading.Thread(target=sleeper.close)
        closer.start()
        closer.join(0.05)
        assert not other.take(), "a clip is still being encoded"
        layer(torch.ones(2))
    closer.join(10)
    assert layer.weight.untyped_storage().nbytes() == 0 and other.take()
    with pytest.raises(EngineClosed), sleeper.held_awake():
        pass


def test_a_seat_whose_memory_cannot_be_given_back_stays_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = Seats(tmp_path, 1, "a"), Seats(tmp_path, 1, "b")
    assert mine.take()
    sleeper = Sleeper(Residents(ModelWeights((torch.nn.Linear(2, 2),)), CPU), mine)
    monkeypatch.setattr(DeviceRegion, "release", Mock(side_effect=RuntimeError("an illegal memory access")))
    sleeper.close()
    assert not other.take(), "it is this process's until it ends"


def test_a_seat_is_one_engines_until_it_is_given_back(tmp_path: Path) -> None:
    a, b, c = (Seats(tmp_path, 2, name) for name in "abc")
    assert a.take() and b.take() and not c.take()
    assert a.somebody_waits() and not c.somebody_waits()
    a.give_back()
    assert c.take() and not b.somebody_waits()
    for seats in (a, b, c):
        seats.close()


def test_two_who_look_at_once_do_not_take_each_other_for_one_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (Seats(tmp_path, 2, name) for name in "abc")
    assert a.take() and b.take() and not c.take()
    c.close()
    close, seen = os.close, []

    def look_too(file: int) -> None:
        monkeypatch.setattr(os, "close", close)
        seen.append(b.somebody_waits())
        close(file)

    monkeypatch.setattr(os, "close", look_too)
    assert not a.somebody_waits() and seen == [False]


def test_a_process_that_dies_gives_its_seat_back(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        Seats(tmp_path, 1, "child").take()
        os._exit(0)
    os.waitpid(child, 0)
    assert Seats(tmp_path, 1, "other").take()


def test_a_region_comes_back_to_whoever_has_a_view() -> None:
    region = DeviceRegion(1024, CPU)
    view = region.memory[:64].view(torch.float32)
    region.release()
    assert region.memory.untyped_storage().nbytes() == 0
    region.restore()
    view.fill_(3)
    assert region.memory[:4].view(torch.float32) == 3


def test_prefixes_are_forgotten() -> None:
    pool = BlockPool(8, 4)
    keys = np.arange(8, dtype=np.int32)
    first = pool.allocate(keys, 8, 12)
    assert first is not None
    pool.publish(first, 8)
    with pytest.raises(AssertionError, match="in use"):
        pool.forget()
    pool.release(first)
    pool.forget()
    again = pool.allocate(keys, 8, 12)
    assert again is not None and again.reused_tokens == 0
