"""CUDA sources are compiled once, by the first process that needs them, and failures are reported and survived."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from sonant.kernels.cuda import attention, compiler, conv, frame_pass, int8_unit, kernel, paged_pass, stack, unit
from sonant.kernels.cuda.compiler import BuildError, Program, build

PROGRAM = Program("decode.cu", {"HEAD_DIM": 128})
ARCH = 90
FORM = attention.FORMS[0]
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "stand-in"; echo "Build $VERSION"; exit 0; fi
echo "$@" >> "{log}"
while [ "$1" != -o ]; do shift; done
{work}
"""


class StandIn:
    """An nvcc that logs its arguments and does what a test tells it to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.log, self.monkeypatch = folder / "cuda", folder / "asked", monkeypatch
        (self.home / "bin").mkdir(parents=True)
        monkeypatch.setenv("CUDA_HOME", str(self.home))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("VERSION", "1")
        self.does('echo machine code > "$2"')

    def does(self, work: str, version: str = "1") -> None:
        path = self.home / "bin" / "nvcc"
        path.write_text(NVCC.format(log=self.log, work=work))
        path.chmod(0o755)
        self.monkeypatch.setenv("VERSION", version)
        compiler._version.cache_clear()

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path, monkeypatch)


@pytest.fixture
def no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_program_is_compiled_once(nvcc: StandIn) -> None:
    first = build(PROGRAM, ARCH)
    assert first.read_text() == "machine code\n" and build(PROGRAM, ARCH) == first
    (asked,) = nvcc.asked
    assert {"-cubin", "-arch=sm_90", "-DHEAD_DIM=128"} <= set(asked.split())
    assert asked.endswith("decode.cu")
    assert [path.name for path in first.parent.iterdir()] == [first.name]  # no temporary file is left


def test_other_constants_another_gpu_and_other_sources_are_other_files(
    nvcc: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        build(PROGRAM, ARCH).name,
        build(PROGRAM, 100).name,
        build(Program("decode.cu", {"HEAD_DIM": 64}), ARCH).name,
    }
    changed = tmp_path / "source"
    changed.mkdir()
    for path in compiler.SOURCES.iterdir():
        (changed / path.name).write_bytes(path.read_bytes() + (b"// changed" if path.name == "paged.cuh" else b""))
    monkeypatch.setattr(compiler, "SOURCES", changed)
    compiler._digest.cache_clear()
    names.add(build(PROGRAM, ARCH).name)
    compiler._digest.cache_clear()
    assert len(names) == 4 and len(nvcc.asked) == 4


def test_what_ships_needs_no_compiler(no_nvcc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "SHIPPED", tmp_path)
    shipped = tmp_path / PROGRAM.file_name(ARCH)
    shipped.write_bytes(b"shipped")
    assert build(PROGRAM, ARCH) == shipped
    with pytest.raises(BuildError, match="no nvcc"):
        build(PROGRAM, 100)


def test_a_wheels_cubins_are_built_into_a_folder(
    nvcc: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["compiler", "90", str(tmp_path / "prebuilt")])
    assert compiler.main() == 0
    made = {path.name for path in (tmp_path / "prebuilt").iterdir()}
    modules = (attention, conv, frame_pass, int8_unit, paged_pass, stack, unit)
    programs = [program for module in modules for program in module.programs()]
    assert made == {program.file_name(90) for program in programs} and len(made) == len(programs) == 30


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("echo 'no such instruction' >&2; exit 3", "with 3: no such instruction"),
        ("exit 0", "with 0: it said nothing"),  # but it has made no file
        (': > "$2"', "it said nothing"),  # an empty file counts as none
        ("kill -9 $$", "failed at decode.cu with -9"),
        (r"printf 'nicht gefunden: f\374r.h' >&2; exit 1", "with 1: nicht gefunden: f"),  # not in UTF-8
    ],
)
def test_a_failure_tells_what_the_compiler_said_and_is_not_tried_by_everybody(
    nvcc: StandIn, work: str, reason: str
) -> None:
    nvcc.does(work)
    for _ in range(2):
        with pytest.raises(BuildError, match=reason):
            build(PROGRAM, ARCH)
    assert len(nvcc.asked) == 1
    assert reason in (compiler.refused(PROGRAM, ARCH) or "")
    nvcc.does('echo better > "$2"', version="2")  # a compiler of another version is tried
    assert compiler.refused(PROGRAM, ARCH) is None
    assert build(PROGRAM, ARCH).read_text() == "better\n"


def test_a_failure_is_forgotten_after_an_hour(nvcc: StandIn) -> None:
    nvcc.does("exit 1")
    with pytest.raises(BuildError):
        build(PROGRAM, ARCH)
    (note,) = compiler.cache_folder().glob("*.refused")
    old = time.time() - 2 * 3600
    os.utime(note, (old, old))
    nvcc.does('echo later > "$2"')
    assert build(PROGRAM, ARCH).read_text() == "later\n"


def test_a_compiler_that_hangs_is_given_up(nvcc: StandIn) -> None:
    nvcc.does("exec sleep 60")
    began = time.monotonic()
    with pytest.raises(BuildError, match=r"more than 0\.5 s"):
        build(PROGRAM, ARCH, timeout_s=0.5)
    assert time.monotonic() - began < 20


def test_a_cache_that_cannot_be_written_is_a_reason_and_no_crash(nvcc: StandIn, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(BuildError, match="cannot be compiled into"):
        build(PROGRAM, ARCH)


def test_a_cache_that_cannot_be_looked_into_is_a_reason_and_no_crash(
    nvcc: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a HOME that belongs to another user, but also for root, who may look everywhere: the name is too long."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + 300 * "x")
    assert compiler.find(PROGRAM, ARCH) is None
    with pytest.raises(BuildError, match="cannot be compiled into"):
        build(PROGRAM, ARCH)


def test_a_cache_may_be_named_from_where_one_is(nvcc: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "nearby")
    assert build(PROGRAM, ARCH).read_text() == "machine code\n"


def test_whoever_builds_at_once_finds_whole_files_only(nvcc: StandIn) -> None:
    """Slow compilers write half of a file, wait and write the rest; readers look meanwhile."""
    nvcc.does('printf half > "$2"; sleep 0.3; printf whole >> "$2"')
    script = (
        "from sonant.kernels.cuda.compiler import Program, build\n"
        "print(build(Program('decode.cu', {'HEAD_DIM': 128}), 90).read_text())"
    )
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            if (found := compiler.find(PROGRAM, ARCH)) is not None:
                seen.add(found.read_text())
            time.sleep(0.01)

    watcher = threading.Thread(target=look)
    watcher.start()
    builders = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [builder.communicate(timeout=60)[0] for builder in builders] == ["halfwhole\n"] * 2
    ended.set()
    watcher.join()
    assert seen <= {"halfwhole"} and len(list(compiler.cache_folder().iterdir())) == 1


def test_the_process_that_compiles_ahead_builds_what_steps_need(nvcc: StandIn) -> None:
    """Its children compile, each program once, and it reports the folder of the results."""
    pytest.importorskip("triton")
    from sonant.engine.compile_process import Compiling
    from sonant.engine.rehearsal import Rehearsal

    def step() -> None:
        for dim in (64, 128, 128):
            attention.decode_kernel(dim, FORM).launch(torch.device("meta"), (1, 1, 1))

    compiling = Compiling(Rehearsal(attention.Gpu("NVIDIA H200", (9, 0)), lambda: [step, step]), workers=1)
    compiling.finish()
    assert (compiling.found, compiling.compiled, sorted(compiling.ready), compiling.failures) == (2, 2, [0, 1], [])
    assert len(nvcc.asked) == 2 and set(compiling.folders) == {str(compiler.cache_folder())}
    assert all(compiler.find(attention.decode_kernel(dim, FORM).program, ARCH) for dim in (64, 128))


def test_a_kernel_that_cannot_be_built_is_not_ready_and_says_so_once(
    nvcc: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvcc.does("echo broken >&2; exit 1")
    monkeypatch.setattr(kernel, "gpu_of", lambda device: attention.Gpu("NVIDIA H200", (9, 0)))
    kernel._function.cache_clear()
    mine = attention.decode_kernel(128, FORM)
    assert [mine.is_ready(torch.device("cuda", 0)) for _ in range(3)] == [False] * 3
    assert [record.message.count("broken") for record in caplog.records] == [1]
    kernel._function.cache_clear()
