"""Kernels are compiled before an engine needs them, all of them and in parallel, and an engine can do without that."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from sonant.config import EngineConfig
from sonant.engine.compile_ahead import CompileAhead, CompileJob, begin, begin_beside, workers_for
from sonant.engine.compiler import Compiler, compiler_for
from sonant.engine.room import GpuMemory
from sonant.errors import ConfigError
from sonant.kernels.gpu import Gpu
from waiting import until

pytest.importorskip("triton")
from sonant.kernels import triton_setup

GPU = Gpu("NVIDIA H200", (9, 0))
MEMORY = GpuMemory("NVIDIA H200", (9, 0), 132, 141 << 30, 100 << 30)
DTYPES = (torch.bfloat16, torch.bfloat16)
HERE = Path(__file__).parent


def run_apart(script: str, *args: object, cache: Path, **variables: str) -> str:
    """Run a script in a process without Triton's interpreter, which runs the other tests' kernels → its last line."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(cache)}
    environment |= variables
    command = [sys.executable, str(HERE / script), *map(str, args)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_what_is_planned_without_memory_is_what_an_engine_asks_for(
    few_codebooks: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path, tmp_path: Path
) -> None:
    """For every family, while an engine starts and while it speaks."""
    folders = (few_codebooks["custom"], few_codebooks["base"], tiny_higgs, tiny_voxcpm2)
    reports = json.loads(run_apart("asked_kernels.py", *folders, cache=tmp_path))
    assert len(reports) == len(folders)
    for report in reports:
        assert report["missing"] == report["later"] == report["needless"] == []
        assert report["planned"] > 50 and report["stages"] > 20


@pytest.mark.slow
def test_what_is_planned_is_what_an_engine_asks_for_whose_weights_come_and_go(
    few_codebooks: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path, tmp_path: Path
) -> None:
    folders = (few_codebooks["custom"], tiny_higgs, tiny_voxcpm2)
    for report in json.loads(run_apart("asked_kernels.py", "--paged", *folders, cache=tmp_path)):
        assert report["missing"] == report["later"] == report["needless"] == []
        assert {"_weights_wanted", "_weights_there", "_pass_ends", "_host_rows"} <= set(report["names"])


@pytest.mark.slow
def test_what_is_planned_is_what_an_engine_asks_for_whose_weights_have_eight_bits(
    few_codebooks: Mapping[str, Path], tiny_higgs: Path, tmp_path: Path
) -> None:
    folders = (few_codebooks["custom"], tiny_higgs)
    for report in json.loads(run_apart("asked_kernels.py", "--fp8", *folders, cache=tmp_path)):
        assert report["missing"] == report["later"] == report["needless"] == []
        assert {"_gemv", "_small_m_gemm", "_quantize_rows"} <= set(report["names"])


@pytest.mark.slow
def test_kernels_compile_in_parallel_to_where_a_launch_finds_them(tmp_path: Path) -> None:
    report = json.loads(run_apart("parallel_compile.py", cache=tmp_path))
    assert report["failures"] == [] and sorted(report["ready"]) == [0, 1] and report["misses"] == 0
    assert len(report["folders"]) == report["found"] == 3
    for folder in map(Path, report["folders"]):
        assert folder.parent == tmp_path and list(folder.glob("*.cubin"))
    assert set(report["launched"]) == set(report["folders"])


@pytest.mark.slow
def test_launchers_are_built_with_the_kernels(tmp_path: Path) -> None:
    """They are linked to NVIDIA's driver, so this needs a stand-in for it."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    source, library = HERE.parent / "kernels" / "stand_in_driver.c", tmp_path / "lib" / "libcuda.so.1"
    library.parent.mkdir()
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    folder = str(library.parent)
    report = json.loads(
        run_apart("parallel_compile.py", cache=tmp_path / "c", TRITON_LIBCUDA_PATH=folder, LD_LIBRARY_PATH=folder)
    )
    assert report["failures"] == [] and report["misses"] == report["launchers"] == 0
    assert len(list((tmp_path / "c").glob("*/__triton_launcher*"))) == 2  # two norms have the same arguments


@pytest.mark.slow
def test_what_takes_long_is_compiled_as_soon_as_it_is_found(tmp_path: Path) -> None:
    """The others are compiled when all stages are rehearsed. A stage is ready when its own kernels are, whichever stage
    found them first."""
    report = json.loads(run_apart("compile_order.py", tmp_path / "notes", "order", cache=tmp_path))
    notes = report["notes"]
    assert notes.index("slow") < notes.index("stage 6") < notes.index("quick") < notes.index("other")
    assert [notes.count(name) for name in ("slow", "quick", "other")] == [1, 1, 1]
    assert report["failures"] == [] and sorted(report["ready"]) == list(range(7))
    ready = report["ready"].index
    assert ready(5) < ready(0) < ready(2) and ready(1) < ready(2)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "said"), [("broken", "/cache/kernels"), ("deadly", "BrokenProcessPool")])
def test_a_kernel_that_fails_or_kills_its_compiler_keeps_nobody_waiting(case: str, said: str, tmp_path: Path) -> None:
    report = json.loads(run_apart("compile_order.py", tmp_path / "notes", case, cache=tmp_path))
    assert report["failures"] and all(said in failure for failure in report["failures"])
    assert case == "deadly" or len(report["failures"]) == 1
    assert "quick" in report["notes"]


@pytest.fixture
def job(tmp_path: Path) -> CompileJob:
    return CompileJob("nowhere", {}, "bfloat16", "bfloat16", {}, 1, str(tmp_path / "stamp.json"))


Say = Callable[[str], CompileAhead]


@pytest.fixture
def say(job: CompileJob) -> Say:
    """`say(script)`: a compiler process that runs this script instead."""
    return lambda script: CompileAhead(job, Compiler((sys.executable, "-c", f"import json, sys, time\n{script}")))


def news(found: int, compiled: int, ready: list[int], planned: bool) -> str:
    return f"print({json.dumps(json.dumps({'kernels': [found, compiled, ready, planned]}))}, flush=True)\n"


def test_a_graph_waits_for_its_own_kernels_only(say: Say) -> None:
    ahead = say(news(4, 0, [], False) + news(4, 2, [1], False) + news(4, 3, [5], True) + "time.sleep(1)")
    assert ahead.wait_for_any([0, 1, 2]) == 1
    assert ahead.wait_for_any([0, 2, 5]) == 5
    assert ahead.progress.ready == {1, 5} and not ahead.over
    assert ahead.wait_for_any([2, 0]) == 2  # it was never reported, but the process has ended
    assert ahead.over


def test_an_engine_goes_on_when_the_process_dies(say: Say, caplog: pytest.LogCaptureFixture) -> None:
    ahead = say("print('no room on the disk')\nsys.exit(3)")
    began_s = time.monotonic()
    ahead.wait_for_any([100])
    ahead.wait_for_all()
    assert time.monotonic() - began_s < 20
    deadline_s = time.monotonic() + 5
    while "no room on the disk" not in caplog.text and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert "no room on the disk" in caplog.text and "as they are met" in caplog.text


def test_what_a_compiler_says_need_not_be_utf8(say: Say) -> None:
    """A C compiler writes in the machine's encoding, and a process that is killed may end in the middle of a letter."""
    latin, cut = (f"sys.stdout.buffer.write({said!r})\n" for said in (b"caf\xe9\n", b"caf\xc3"))
    ahead = say(latin + news(4, 2, [1], False) + cut)
    until(lambda: ahead.progress.ready == {1})
    until(lambda: ahead.over)


def test_an_engine_does_not_wait_for_a_compiler_that_hangs(
    say: Say, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonant.engine.compile_ahead._TELL_S", 0.05)
    monkeypatch.setattr("sonant.engine.compile_ahead._SILENCE_S", 0.3)
    ahead = say(news(4, 1, [], True) + "time.sleep(60)")
    ahead.wait_for_any([3])
    assert ahead.progress.ended and ahead._process.wait(10) != 0


def test_it_tells_how_far_it_is(say: Say, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonant.engine.compile_ahead._TELL_S", 0.05)
    with caplog.at_level(logging.INFO, "sonant.engine.compile_ahead"):
        say(news(120, 37, [], True) + "time.sleep(0.4)").wait_for_all()
    assert "compiling kernels 37/120" in caplog.text


def test_what_is_compiled_already_starts_no_process(
    tiny_voxcpm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    begun: list[CompileJob] = []
    monkeypatch.setattr("sonant.engine.compile_ahead.CompileAhead", lambda job, compiler, note: begun.append(job))
    config = EngineConfig()
    begin(tiny_voxcpm2, config, DTYPES, MEMORY)
    (first,) = begun
    assert Path(first.stamp).parent == tmp_path
    assert first.engine_config() == config and first.gpu_memory() == MEMORY
    assert CompileJob(**json.loads(json.dumps(asdict(first)))).engine_config() == config
    kernel = tmp_path / "KERNEL"
    kernel.mkdir()
    Path(first.stamp).write_text(json.dumps([str(kernel)]))
    assert begin(tiny_voxcpm2, config, DTYPES, MEMORY) is None and len(begun) == 1
    begin(tiny_voxcpm2, EngineConfig(max_rows=3), DTYPES, MEMORY)  # another engine has other kernels
    assert len(begun) == 2
    kernel.rmdir()
    begin(tiny_voxcpm2, config, DTYPES, MEMORY)
    assert len(begun) == 3


@pytest.mark.parametrize("stamp", ["", "{", "7", "[7]"])
def test_a_broken_stamp_is_none(job: CompileJob, stamp: str) -> None:
    Path(job.stamp).write_text(stamp)
    assert not job.is_done()


def test_it_can_be_turned_off(tiny_voxcpm2: Path) -> None:
    assert begin(tiny_voxcpm2, EngineConfig(compile_workers=0), DTYPES, MEMORY) is None
    assert workers_for(3) == 3 and workers_for(None) >= 1


def test_a_compiler_that_waits_is_told_what_to_compile_or_ends(job: CompileJob, tiny_voxcpm2: Path) -> None:
    script = "import sys; line = sys.stdin.readline(); line and print(line); sys.exit(3 if line else 0)"
    waiting = Compiler((sys.executable, "-c", script))
    ahead = CompileAhead(job, waiting)
    ahead.wait_for_all()
    assert waiting.process.returncode == 3 and json.loads(ahead.progress.said[0])["folder"] == job.folder
    idle = Compiler((sys.executable, "-c", script))
    assert begin(tiny_voxcpm2, EngineConfig(compile_workers=0), DTYPES, MEMORY, compiler=idle) is None
    assert idle.process.wait(20) == 0


def test_no_compiler_waits_where_none_will_be_needed() -> None:
    assert compiler_for("cpu", None) is None and compiler_for("cuda", 0) is None


def test_what_is_done_beside_the_weights_comes_back_and_so_does_what_is_wrong_with_it(
    job: CompileJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up = list[Gpu]()
    monkeypatch.setattr("sonant.kernels.triton_setup.set_up", set_up.append)
    ahead = CompileAhead(job, Compiler((sys.executable, "-c", "")))
    assert begin_beside(GPU, lambda: ahead).result(20) is ahead and set_up == [GPU]
    assert begin_beside(GPU, lambda: None).result(20) is None

    def wrong() -> None:
        raise ConfigError("no such thing")

    with pytest.raises(ConfigError, match="no such thing"):
        begin_beside(GPU, wrong).result(20)


def test_a_machine_without_a_driver_is_set_up_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that needs a driver will raise an error; here its lack is no error, and the rest is done."""
    monkeypatch.setattr("sonant.kernels.triton_setup.triton_key", lambda: None)
    triton_setup.set_up(GPU)


@pytest.mark.slow
def test_the_real_one_ends_when_nobody_needs_it() -> None:
    compiler = Compiler()
    compiler.dismiss()
    assert compiler.process.wait(60) == 0


@pytest.mark.slow
def test_shapes_are_found_without_torchs_compiler_and_who_asks_for_it_gets_it(tmp_path: Path) -> None:
    report = json.loads(run_apart("without_dynamo.py", cache=tmp_path))
    assert report == {"shape": [3, 5], "imported": False, "module": "torch._dynamo.config", "real": True}
