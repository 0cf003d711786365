"""How many rows and how much memory an engine chooses by itself, for GPUs that are not present."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sonant.cli.doctor import chosen
from sonant.config import EngineConfig, Room
from sonant.engine.kv_cache import block_count, check_type
from sonant.engine.room import GpuMemory, row_bytes
from sonant.errors import ConfigError
from sonant.kernels.gpu import Gpu
from sonant.models.spec import Field, KVGroup, ModelSpec

GB = 10**9
H200 = GpuMemory("NVIDIA H200", (9, 0), 132, 141 * GB, 134 * GB)
A100 = GpuMemory("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85 * GB, 79 * GB)
L4 = GpuMemory("NVIDIA L4", (8, 9), 58, 24 * GB, 18 * GB)
T4 = GpuMemory("Tesla T4", (7, 5), 40, 16 * GB, 10 * GB)
SMALL = GpuMemory("NVIDIA GeForce GTX 1650", (7, 5), 14, 4 * GB, GB // 4)
GPUS = [H200, A100, L4, T4, SMALL]
LARGE = KVGroup("talker", 28, 8, 128, torch.bfloat16)  # Qwen3-TTS 1.7B: 114,688 bytes a position


def spec_of(state_bytes: int = 5 << 20) -> ModelSpec:
    return ModelSpec(
        family="made up", sample_rate=24_000, clip_sample_rate=24_000, samples_per_frame=1920, frame_shape=(16,),
        frame_dtype="int32", max_positions=32_768, staged_numbers=(), kv=(LARGE,),
        state=(Field("state", (state_bytes,), torch.uint8),), frame_weight_bytes=1,
    )  # fmt: skip


SPEC = spec_of()


def test_an_h200_takes_two_thousand_listeners() -> None:
    config = EngineConfig().resolved(H200.room(SPEC))
    assert (config.max_rows, config.max_batch, config.warm_rows, config.steps_ahead) == (2048, 1024, 1024, 1)
    tokens = H200.likely_kv_tokens(SPEC, config)
    assert tokens / 2000 > 25 * 12.5 + 60  # for each listener a prompt and 25 s of speech


@pytest.mark.parametrize("smaller, larger", [(A100, H200), (L4, A100), (T4, L4), (SMALL, T4)], ids=lambda g: g.name)
def test_a_smaller_gpu_takes_no_more(smaller: GpuMemory, larger: GpuMemory) -> None:
    less, more = (EngineConfig().resolved(gpu.room(SPEC)) for gpu in (smaller, larger))
    assert less.max_rows and more.max_rows and less.max_batch and more.max_batch
    assert less.max_rows <= more.max_rows and less.max_batch <= more.max_batch


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
@pytest.mark.parametrize("state_bytes", [1 << 10, 5 << 20, 60 << 20])
def test_nothing_is_taken_that_does_not_fit(gpu: GpuMemory, state_bytes: int) -> None:
    spec = spec_of(state_bytes)
    config = EngineConfig().resolved(gpu.room(spec))
    assert config.max_rows is not None and config.max_batch is not None and config.max_batch <= config.max_rows
    sized = replace(config, kv_tokens=gpu.likely_kv_tokens(spec, config))
    cache = block_count(spec, sized, torch.device("cuda")) * config.block_tokens * spec.kv_token_bytes
    assert config.max_rows * row_bytes(spec) + cache <= gpu.free_bytes
    assert cache / spec.kv_token_bytes >= 256 * config.max_rows * config.kv_memory_fraction or config.max_rows == 1


def test_a_little_memory_more_or_less_is_the_same_engine() -> None:
    """Kernels are compiled for the engine before free memory is known to the byte."""
    rows = {EngineConfig().resolved(replace(H200, free_bytes=b * GB).room(SPEC)).max_rows for b in range(125, 138)}
    assert rows == {2048}


def test_what_is_asked_for_stays() -> None:
    room = Room(batch=64, memory_bytes=10 * GB, row_bytes=1 << 20, kv_token_bytes=1 << 10)
    config = EngineConfig(max_rows=300, max_batch=40, steps_ahead=0, warm_rows=8).resolved(room)
    assert (config.max_rows, config.max_batch, config.steps_ahead, config.warm_rows) == (300, 40, 0, 8)
    assert EngineConfig(max_rows=300).resolved(room).max_batch == 64
    assert EngineConfig(max_rows=3).resolved(room).max_batch == 3


def test_a_cpu_stays_as_it_was() -> None:
    config = EngineConfig().resolved(None)
    assert (config.max_rows, config.max_batch, config.steps_ahead) == (8, 8, 0)


def test_a_cpu_makes_little_sound_at_once() -> None:
    """The codec would take a gigabyte for the largest chunks of eight rows. A step must still make enough sound to keep
    up."""
    assert EngineConfig().resolved(H200.room(SPEC)).frame_sizes(0.08).codec_batch == 1024
    for rows in (1, 8, 64):
        sizes = EngineConfig(max_rows=rows).resolved(None).frame_sizes(0.08)
        assert sizes.codec_batch == max(sizes.chunks[-1], 2 * rows)
    assert EngineConfig(codec_batch_s=5.12).resolved(None).frame_sizes(0.08).codec_batch == 64


def test_the_doctor_says_what_and_why() -> None:
    told = chosen(EngineConfig().resolved(H200.room(SPEC)), SPEC, H200)
    assert (told.max_rows, told.max_batch) == (2048, 1024) and told.kv_tokens > 700_000
    assert "NVIDIA H200 has 132 processors and 134.00 GB free beside the weights" in told.reason
    short = chosen(EngineConfig().resolved(L4.room(spec_of(200 << 20))), spec_of(200 << 20), L4)
    assert short.max_rows < 256 and "not enough for more rows" in short.reason
    assert "CPU" in chosen(EngineConfig().resolved(None), SPEC, None).reason


def test_a_model_that_keeps_a_gpu_busy_with_fewer_rows_gets_no_more() -> None:
    heavy = replace(SPEC, full_batch=256)
    config = EngineConfig().resolved(H200.room(heavy))
    assert (config.max_rows, config.max_batch) == (512, 256)
    assert "256 rows keep it busy" in chosen(config, heavy, H200).reason
    assert "not enough" not in chosen(config, heavy, H200).reason
    assert L4.batch < 256 or L4.room(heavy).batch == 256
    assert EngineConfig(max_batch=600, max_rows=900).resolved(H200.room(heavy)).max_batch == 600  # as requested


def test_a_cache_of_eight_bits_has_room_for_twice_as_many() -> None:
    small = SPEC.with_kv_dtype(torch.float8_e4m3fn)
    config = EngineConfig().resolved(H200.room(SPEC))
    usual, more = (H200.likely_kv_tokens(spec, config) for spec in (SPEC, small))
    assert 2 * usual <= more <= 2 * usual + 1
    assert SPEC.kv[0].dtype is torch.bfloat16 and small.kv[0].layers == SPEC.kv[0].layers


def test_a_gpu_that_has_no_eight_bits_says_so() -> None:
    small = SPEC.with_kv_dtype(torch.float8_e4m3fn)
    for gpu in (H200, L4):
        check_type(small, Gpu(gpu.name, gpu.capability))
    check_type(small, None)
    check_type(SPEC, Gpu(A100.name, A100.capability))
    with pytest.raises(ConfigError, match=r"A100-SXM4-80GB has 8\.0; leave it out"):
        check_type(small, Gpu(A100.name, A100.capability))
    with pytest.raises(ConfigError, match="kv_cache_dtype must be fp8, or left out, not 'int4'"):
        EngineConfig(kv_cache_dtype="int4")  # type: ignore[arg-type]
