"""What reaches NVIDIA's driver when a kernel is loaded and launched: a stand-in in C records it in its structures."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from sonant.kernels.cuda import driver
from sonant.kernels.cuda.driver import BlockSize, DriverError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")
STREAM = 0x7FFF_0000_1234_5678


class Seen(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("attribute_count", ctypes.c_uint), ("attribute", ctypes.c_int), ("allowed", ctypes.c_int),
        ("launches", ctypes.c_int), ("context_set", ctypes.c_int), ("asked_attribute", ctypes.c_int),
        ("asked_value", ctypes.c_int), ("refuse", ctypes.c_int), ("carveout", ctypes.c_int),
        ("clusters", ctypes.c_int), ("refuse_early", ctypes.c_int), ("cluster", ctypes.c_int * 3),
        ("cooperative", ctypes.c_int),
        ("stream", ctypes.c_void_p), ("function", ctypes.c_void_p), ("arguments", ctypes.c_char * 16),
        ("code", ctypes.c_char * 16), ("entry", ctypes.c_char * 32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("stand_in_driver.c")
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture
def seen(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    told = Seen.in_dll(library, "seen")
    ctypes.memset(ctypes.addressof(told), 0, ctypes.sizeof(told))
    monkeypatch.setattr(driver, "library", lambda: library)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    driver._module.cache_clear()
    yield told
    driver._module.cache_clear()


@pytest.fixture
def cubin(tmp_path: Path) -> Path:
    path = tmp_path / "made.cubin"
    path.write_bytes(b"machine code")
    return path


def test_a_launch_has_its_grid_memory_stream_and_one_structure(seen: Seen, cubin: Path) -> None:
    function = driver.load(cubin, "paged_decode", 0, BlockSize(128, 102416))
    assert (seen.code, seen.entry, seen.asked_attribute, seen.asked_value) == (
        b"machine code",
        b"paged_decode",
        8,
        102416,
    )
    assert seen.carveout == 100
    function.launch((8, 64, 3), b"sixteen bytes!!\x00")
    told: Any = seen
    assert (list(told.grid), list(told.block), told.shared_bytes) == ([8, 64, 3], [128, 1, 1], 102416)
    assert told.stream == STREAM and told.function == 0x7FEDCBA987654321
    assert (told.attribute_count, told.attribute, told.allowed) == (1, 6, 1)  # it may start early
    assert told.arguments == b"sixteen bytes!!"


def test_a_thread_that_has_not_met_the_gpu_is_given_torchs_context(seen: Seen, cubin: Path) -> None:
    function = driver.load(cubin, "paged_decode", 0, BlockSize(128, 1024))
    seen.context_set = 0
    function.launch((1, 1, 1), bytes(16))
    assert seen.launches == 2 and seen.context_set == 1


def test_a_refusal_says_what_was_refused(seen: Seen, cubin: Path) -> None:
    function = driver.load(cubin, "paged_decode", 0, BlockSize(128, 1024))
    seen.refuse = 209
    with pytest.raises(DriverError, match=r"cuLaunchKernelEx: stand-in says no \(209\)"):
        function.launch((1, 1, 1), bytes(16))
    driver._module.cache_clear()
    with pytest.raises(DriverError, match=r"made\.cubin: stand-in"):
        driver.load(cubin, "paged_decode", 0, BlockSize(128, 1024))


def test_a_grid_that_must_be_whole_says_so(seen: Seen, cubin: Path) -> None:
    seen.clusters = 32
    function = driver.load(cubin, "local_stack", 0, BlockSize(288, 2048, cluster=4, resident=128))
    function.launch((128, 1, 1), bytes(16))
    told: Any = seen
    assert (told.attribute_count, told.attribute, list(told.cluster), told.cooperative) == (3, 6, [4, 1, 1], 1)
    seen.clusters = 31
    with pytest.raises(DriverError, match="only 31 clusters of 4 run at once, not 128 blocks"):
        driver.load(cubin, "local_stack", 0, BlockSize(288, 2048, cluster=4, resident=128))


def test_a_driver_that_has_no_early_start_for_such_a_grid_is_not_asked_again(seen: Seen, cubin: Path) -> None:
    seen.clusters, seen.refuse_early = 32, 801
    function = driver.load(cubin, "local_stack", 0, BlockSize(288, 2048, cluster=4, resident=128))
    function.launch((128, 1, 1), bytes(16))
    told: Any = seen
    assert (told.launches, told.attribute_count, told.cooperative) == (2, 2, 1)  # the second is not early
    function.launch((128, 1, 1), bytes(16))
    assert told.launches == 3
    other = driver.load(cubin, "paged_decode", 0, BlockSize(128, 1024))
    with pytest.raises(DriverError, match="801"):  # for a grid that is not cooperative the error is raised
        other.launch((1, 1, 1), bytes(16))
