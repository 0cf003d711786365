"""Fixtures that all tests share: random checkpoints, and what the official package computed from them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# Read when torch loads: its bfloat16 products use instructions that some virtual machines announce but lack.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

# No test leaves this machine. A client that trusts a machine's hundreds of certificates reads all of them first, which
# takes 40 ms of a core for each client, or for each request that makes one of its own.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.fspath(Path(__file__).parent)  # a folder without certificates

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton loads

from sonant.models.higgs_audio_v2.synthetic.writer import write_checkpoint as write_higgs_checkpoint
from sonant.models.qwen3_tts.config import Kind
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.models.voxcpm2.synthetic.writer import write_checkpoint as write_voxcpm2_checkpoint

# The same examples on every machine and every day, so that a failure is due to the change under test.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

GOLDEN = Path(__file__).parent / "parity" / "golden"
KINDS: Mapping[str, Kind] = {"base": "base", "custom": "custom_voice", "design": "voice_design"}

torch.set_num_threads(1)  # golden values were made with one thread, and xdist is parallel


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "heavy" not in item.keywords)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Tiny random checkpoints "base", "custom" and "design", written once a session and never changed."""
    ready = once_a_session(tmp_path_factory, "tiny_checkpoints", partial(write_kinds, write_checkpoint))
    return {name: ready / name for name in KINDS}


@pytest.fixture(scope="session")
def few_codebooks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The same with four codebooks instead of sixteen, whose frames cost less than half.

    For tests of everything around the model: the golden values are those of sixteen codebooks.
    """
    write = partial(write_kinds, partial(write_checkpoint, code_groups=4))
    ready = once_a_session(tmp_path_factory, "few_codebooks", write)
    return {name: ready / name for name in KINDS}


def write_kinds(write: Callable[..., None], folder: Path) -> None:
    for name, kind in KINDS.items():
        write(folder / name, kind=kind)


@pytest.fixture(scope="session")
def tiny_higgs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random Higgs checkpoint that golden/higgs*.npz were made from, written once a session."""
    return once_a_session(tmp_path_factory, "tiny_higgs", write_higgs_checkpoint)


@pytest.fixture(scope="session")
def tiny_voxcpm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random VoxCPM2 checkpoint that golden/voxcpm2.npz was made from, written once a session."""
    return once_a_session(tmp_path_factory, "tiny_voxcpm2", write_voxcpm2_checkpoint)


@pytest.fixture(scope="session")
def mid_voxcpm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of golden/voxcpm2_mid.npz, with the published heads: 133 MB, for what the tiny one cannot show."""
    return once_a_session(tmp_path_factory, "mid_voxcpm2", partial(write_voxcpm2_checkpoint, size="mid"))


def once_a_session(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """Return a folder that `write` has filled, called by whichever of xdist's workers came first."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # a worker's own folder lies in the session's
    ready = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            staging = root / f"{name}.partial"
            write(staging)
            staging.rename(ready)
    return ready


@pytest.fixture(scope="session")
def full_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the 1.7B shapes, for a GPU. SONANT_FULL_MODEL: where `sonant random-model` has made them."""
    folder = Path(os.environ.get("SONANT_FULL_MODEL") or tmp_path_factory.mktemp("full") / "model")
    if not (folder / "config.json").exists():
        write_checkpoint(folder, kind="custom_voice", size="1.7b", device="cuda")
    return folder


@pytest.fixture(scope="session")
def full_higgs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the 3B shapes, for a GPU. SONANT_FULL_HIGGS: where `sonant random-model` has made them."""
    folder = Path(os.environ.get("SONANT_FULL_HIGGS") or tmp_path_factory.mktemp("full") / "higgs")
    if not (folder / "config.json").exists():
        write_higgs_checkpoint(folder, size="3b", device="cuda")
    return folder


@pytest.fixture(scope="session")
def full_voxcpm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the 2B shapes, for a GPU. SONANT_FULL_VOXCPM2: where `sonant random-model` has made them."""
    folder = Path(os.environ.get("SONANT_FULL_VOXCPM2") or tmp_path_factory.mktemp("full") / "voxcpm2")
    if not (folder / "config.json").exists():
        write_voxcpm2_checkpoint(folder, size="2b", device="cuda")
    return folder


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Like the engine. With gradients the reference would use cuDNN's convolutions, which have ten bits on a GPU."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Mapping[str, np.ndarray]]:
    """`golden("custom")`: what the official code computed from that checkpoint; see parity/README.md."""

    @cache
    def load(name: str) -> Mapping[str, np.ndarray]:
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            return dict(arrays)

    return load


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser for the tests of a page, which are skipped without playwright or a browser."""
    from serving.browser import launched

    with launched() as browser:
        yield browser
