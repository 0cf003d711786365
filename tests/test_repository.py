"""Git keeps every version of a file for good, so files that are large, or of use to one run only, stay out of it."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[1]
MOST_BYTES = 1_000_000
LARGE = {
    "src/sonant/voices/english/model.safetensors": "the voice that ships: its talker",
    "src/sonant/voices/english/speech_tokenizer/model.safetensors": "the voice that ships: its codec",
    "tests/parity/golden/base.npz": "what the official package computed, which the tests cannot compute again",
}
STATE = re.compile(r"(state|talker|optimi[sz]er)[^/]*\.(safetensors|pt|pth|bin|ckpt)", re.IGNORECASE)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")


def git(folder: Path, *words: str) -> str:
    """Run git even if the checkout belongs to another user, as in containers."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def is_state(path: Path) -> bool:
    """Whether a file is a run's state, by its name or by the metadata that `training.state` writes."""
    if STATE.fullmatch(path.name):
        return True
    if path.suffix != ".safetensors":
        return False
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return "trainer" in json.loads(file.read(length)).get("__metadata__", {})


def faults(folder: Path) -> list[str]:
    """What is wrong with files that git tracks, as they are in the working tree."""
    found = []
    for name in git(folder, "ls-files", "-z").split("\0"):
        path = folder / name
        if not name or path.is_symlink() or not path.is_file():
            continue
        if is_state(path):
            found.append(f"{name} is the state of a run: keep it where it was trained")
        elif path.stat().st_size > MOST_BYTES and name not in LARGE:
            found.append(f"{name} has {path.stat().st_size:,} bytes, over {MOST_BYTES:,}: keep it elsewhere")
    return found


@needs_git
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_state_and_no_large_file_is_tracked_but_those_with_a_reason() -> None:
    assert faults(ROOT) == []


def test_every_exception_is_still_needed() -> None:
    assert [name for name in LARGE if (ROOT / name).stat().st_size <= MOST_BYTES] == []


@needs_git
def test_large_files_and_states_are_told_wherever_they_are(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "small.npz").write_bytes(bytes(MOST_BYTES))
    (tmp_path / "large.npz").write_bytes(bytes(MOST_BYTES + 1))
    (tmp_path / "not added.npz").write_bytes(bytes(MOST_BYTES + 1))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "optimizer.pt").write_bytes(b"")
    tensors = {"weight": np.zeros(1, np.float32)}
    save_file(tensors, tmp_path / "deep" / "state-00.safetensors")
    save_file(tensors, tmp_path / "renamed.safetensors", {"trainer": "{}"})
    save_file(tensors, tmp_path / "weights.safetensors", {"format": "pt"})
    git(tmp_path, "add", "--force", "small.npz", "large.npz", "deep", "renamed.safetensors", "weights.safetensors")
    told = {fault.split()[0] for fault in faults(tmp_path)}
    assert told == {"large.npz", "deep/optimizer.pt", "deep/state-00.safetensors", "renamed.safetensors"}


@needs_git
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
@pytest.mark.parametrize(
    "path",
    [
        "carry/voice1/sentences.jsonl.gz",
        "held-out/shard.npz",
        "runs/today/codec/curves.jsonl",
        "training/checkpoints/codec/curves.jsonl",
        "anywhere/state-00.safetensors",
        "anywhere/talker-01.safetensors",
        "voice/model.safetensors",
    ],
)
def test_what_training_leaves_is_not_added_by_mistake(path: str) -> None:
    assert git(ROOT, "check-ignore", "--no-index", path).strip() == path
