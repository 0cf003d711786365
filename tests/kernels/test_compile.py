"""Every kernel compiles for Hopper, also where there is no GPU."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sonant.kernels
from sonant.kernels.cuda import attention, frame_pass, paged_pass, stack
from sonant.kernels.cuda.compiler import build, find_compiler

KERNELS = Path(sonant.kernels.__file__).parent / "triton"


@pytest.mark.slow
def test_all_kernels_compile_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("hopper_compiler.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(done.stdout.split()) == {name for f in KERNELS.glob("*.py") for name in launched(f)}


def launched(file: Path) -> set[str]:
    """The names of kernels in calls of the form kernel[grid](…)."""
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return {c.value.id for c in calls if isinstance(c, ast.Subscript) and isinstance(c.value, ast.Name)}


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no nvcc here")
def test_all_cuda_programs_compile_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs = [(b"paged_", program) for program in (*attention.programs(), *attention.trial_programs())]
    modules = {b"local_stack": stack, b"frame_pass": frame_pass, b"paged_pass": paged_pass}
    programs += [(entry, program) for entry, module in modules.items() for program in module.programs()]
    for entry, program in programs:
        assert entry in build(program, 90).read_bytes()
