"""A CUDA context is opened before torch is imported: only where a GPU may be used, and harmless where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sonant.engine import early_context

# A driver that counts its calls, and fails at the call number `fails_at`.
DRIVER = r"""
static int calls = 0, fails_at = 0, number = -1;
void fail_at(int n) { calls = 0; fails_at = n; }
int asked(void) { return calls; }
int which(void) { return number; }
int cuInit(unsigned flags) { return ++calls == fails_at; }
int cuDeviceGet(int *device, int n) { number = n; *device = n; return ++calls == fails_at; }
int cuDevicePrimaryCtxRetain(void **context, int device) { number = device; return ++calls == fails_at; }
"""


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "mps", "cuda:-1"])
def test_nothing_is_begun_for_what_is_no_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_context, "has_gpu", lambda: True)
    assert early_context.begin_context(device) is None


def test_nothing_is_begun_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_context, "has_gpu", lambda: False)
    assert early_context.begin_context("auto") is None


@pytest.mark.parametrize(("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:3", 3)])
def test_the_device_that_is_asked_for_is_opened(device: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[int]()
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    monkeypatch.setattr(early_context, "has_gpu", lambda: True)
    monkeypatch.setattr(early_context, "_open", opened.append)
    thread = early_context.begin_context(device)
    assert thread is not None
    thread.join(5)
    assert opened == [number]


def test_a_driver_that_is_missing_is_left_to_torch() -> None:
    assert not early_context._open(0, "libthere-is-none.so.1")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler for a stand-in of the driver")
def test_a_driver_is_asked_in_order_and_not_on_after_a_failure(tmp_path: Path) -> None:
    import ctypes

    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    driver = ctypes.CDLL(str(library))
    driver.fail_at(0)
    assert early_context._open(2, str(library)) and driver.asked() == 3 and driver.which() == 2
    for call in (1, 2, 3):
        driver.fail_at(call)
        assert not early_context._open(2, str(library))
        assert driver.asked() == call
