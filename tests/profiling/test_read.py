"""Traces of torch 2.11 and 2.13 and of Nsight Systems are read alike; a file that is no trace is refused."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.plays import item, prefill, start_up, steps, zeros
from profiling.scripted import PID, Machine, write_kineto, write_nsight
from sonant.profiling.analysis import analyze
from sonant.profiling.events import Trace, TraceError
from sonant.profiling.metrics import measure
from sonant.profiling.read import read_trace
from sonant.profiling.report import make_report


@pytest.fixture(params=[True, False], ids=["graphs", "eager"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return steps(prefill(start_up(Machine())), graphs=request.param)


def facts(trace: Trace) -> dict[str, float]:
    return measure(analyze(trace))


@pytest.mark.parametrize("torch", ["2.11", "2.13"])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_of_torch_is_read(machine: Machine, tmp_path: Path, torch: str, name: str) -> None:
    trace = read_trace(write_kineto(machine, tmp_path / name, torch=torch))
    written = [e for e in machine.events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert len(trace.device) == len(written)
    assert trace.device.duration.sum() == pytest.approx(1000 * sum(e["dur"] for e in written), abs=len(written))
    assert trace.gpu is not None and trace.gpu.name == "NVIDIA H200"
    found = facts(trace)
    assert found["kernels"] == 38 and found["fills"] == 0 and found["step_us"] == pytest.approx(2598, rel=0.01)


def test_a_trace_whose_device_times_are_lost_is_told_so(tmp_path: Path) -> None:
    """The trace is as torch exports it if another recording has begun meanwhile."""
    machine = steps(start_up(Machine()))
    for event in machine.events:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            event["ts"] = event["dur"] = 0
    with pytest.raises(TraceError, match=r"none has a time.*before the next one begins"):
        read_trace(write_kineto(machine, tmp_path / "trace.json"))


def test_nsight_tells_the_same_as_torch(machine: Machine, tmp_path: Path) -> None:
    torch = facts(read_trace(write_kineto(machine, tmp_path / "trace.json")))
    nsight = facts(read_trace(write_nsight(machine, tmp_path / "trace.sqlite")))
    assert nsight == pytest.approx(torch, abs=0.01)


def test_graphs_that_nsight_traced_whole_are_one_piece_and_said_so(tmp_path: Path) -> None:
    machine = steps(start_up(Machine()))
    trace = read_trace(write_nsight(machine, tmp_path / "trace.sqlite", whole_graphs=True))
    assert facts(trace)["kernels"] == 1
    assert any("--cuda-graph-trace=node" in remark for remark in trace.remarks)


def test_an_export_with_few_tables_and_columns_is_read(tmp_path: Path) -> None:
    """nsys makes a table only if it has rows for it, and older versions have fewer columns."""
    db = sqlite3.connect(tmp_path / "few.sqlite")
    db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    db.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, '_sample')")
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, shortName INT)")
    rows = [(1000 * i, 1000 * i + 900, 2 if i % 8 == 7 else 1) for i in range(80)]
    db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", rows)
    db.commit()
    db.close()
    trace = read_trace(tmp_path / "few.sqlite")
    assert facts(trace)["kernels"] == 8
    assert any("no CUDA calls" in remark for remark in make_report(analyze(trace), "few").remarks)


def test_calls_of_another_process_are_not_taken_for_ours(tmp_path: Path) -> None:
    """Each process counts its calls from 1, and Nsight records all of them in one file."""
    path = write_nsight(steps(start_up(Machine()), 8, wastes=[item, zeros]), tmp_path / "two.sqlite")
    alone = facts(read_trace(path))
    with sqlite3.connect(path) as db:
        other = (PID + 1) << 24 | 99
        columns = "start - 500000, end - 500000, eventClass, ?, correlationId, nameId, returnValue, callchainId"
        calls = "CUPTI_ACTIVITY_KIND_RUNTIME"
        db.execute(f"INSERT INTO {calls} SELECT {columns} FROM {calls}", (other,))
        kernel = (0, 900, 1, 1, 7, 1, (PID + 1) << 24, 1, 1, 1, 1, None)
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(kernel))})", kernel)
    trace = read_trace(path)
    assert facts(trace) == alone
    assert "work of other processes was left out" in trace.remarks


def test_an_export_whose_facts_are_null_is_read(tmp_path: Path) -> None:
    path = write_nsight(steps(start_up(Machine())), tmp_path / "null.sqlite")
    before = facts(read_trace(path))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE TARGET_INFO_GPU SET memoryBandwidth = NULL")
        db.execute("INSERT INTO ThreadNames VALUES (1, 0, NULL)")
    assert facts(read_trace(path)) == before


def test_a_real_trace_of_this_torch_is_read(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.randn(64, 64)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as profiler:
        for _ in range(6):
            with record_function("sonant.step rows=1 bucket=1 prefill=0 codec=0"):
                torch.zeros(1000)
                (x @ x).sum().item()
    profiler.export_chrome_trace(str(tmp_path / "cpu.json.gz"))
    trace = read_trace(tmp_path / "cpu.json.gz")
    assert trace.stand_in
    found = facts(trace)
    assert found["host_reads"] == 1 and found["fills"] >= 1


def test_a_plain_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    whole = json.loads(write_kineto(steps(Machine()), tmp_path / "a.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps(whole["traceEvents"]))
    assert facts(read_trace(tmp_path / "b.json"))["kernels"] == 38


def test_text_that_spans_pieces_and_a_comma_too_many_are_fine(tmp_path: Path) -> None:
    whole = json.loads(write_kineto(steps(Machine()), tmp_path / "a.json").read_text())
    whole["traceEvents"].insert(0, {"ph": "M", "name": "ключ", "args": {"long": "é" * (9 << 20)}})
    text = json.dumps(whole, ensure_ascii=False).replace('}], "traceName"', '},], "traceName"')
    assert "},]" in text
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    assert facts(read_trace(tmp_path / "b.json"))["kernels"] == 38


def good(tmp_path: Path, name: str) -> Path:
    write = write_nsight if name.endswith("sqlite") else write_kineto
    return write(steps(Machine(), 6), tmp_path / name)


def test_a_truncated_trace_is_told_as_such(tmp_path: Path) -> None:
    for share in (0.1, 0.5, 0.9, 0.999):
        path = good(tmp_path, "cut.json")
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(TraceError, match=r"cut.json ends in the middle, after"):
            read_trace(path)


def test_a_trace_may_be_cut_at_every_character_of_an_event(tmp_path: Path) -> None:
    path, event = tmp_path / "cut.json", b'{"ph": "X", "cat": "kernel", "name": "a", "ts": 1.5, "args": {"stream": 7}}'
    for end in range(1, len(event)):
        path.write_bytes(b'{"traceEvents": [' + event[:end])
        with pytest.raises(TraceError, match=r"cut.json ends in the middle, after"):
            read_trace(path)


def test_a_truncated_gzip_is_told_as_such(tmp_path: Path) -> None:
    path = good(tmp_path, "cut.json.gz")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(TraceError, match="damaged or cut gzip"):
        read_trace(path)


def test_a_truncated_database_is_told_as_such(tmp_path: Path) -> None:
    path = good(tmp_path, "cut.sqlite")
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(TraceError, match="damaged or incomplete SQLite"):
        read_trace(path)


BAD = {
    "empty": (b"", "is empty"),
    "blank": (b"  \n ", "is empty"),
    "html": (b"<html>404</html>", "begins with '<'"),
    "no events": (b'{"a": 1}', "has no traceEvents"),
    "nothing in it": (b'{"traceEvents": []}', "neither kernels nor operators"),
    "no objects": (b'{"traceEvents": [1, 2]}', "not an object"),
    "broken in the middle": (b'{"traceEvents": [{"ph": "X" "cat": 1}, {"a": 1}]}', "not valid JSON near character"),
    "words for numbers": (
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]}', "wrong or missing field",
    ),
    "no name": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}]}', "wrong or missing field"),
    "too big": (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e99}]}', "wrong or missing field"),
    "no facts": (
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "args": 5}]}', "wrong or missing field",
    ),
    "kinds for a kind": (b'{"traceEvents": [{"ph": "X", "cat": ["kernel"]}]}', "wrong or missing field"),
    "timeless": (b'{"traceEvents": [{"name": "[memory]", "args": {"Bytes": 1}}]}', "wrong or missing field"),
    "nested for ever": (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
    "empty gzip": (gzip.compress(b""), "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_trace_is_told(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_other_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)
    (tmp_path / "own.nsys-rep").write_bytes(b"whatever")
    with pytest.raises(TraceError, match="nsys export --type sqlite"):
        read_trace(tmp_path / "own.nsys-rep")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (a)").connection.close()
    with pytest.raises(TraceError, match="no Nsight Systems export"):
        read_trace(tmp_path / "other.db")


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz", "a.sqlite"):
        seen: list[float] = []
        read_trace(good(tmp_path, name), seen.append)
        assert seen == sorted(seen) and seen[-1] == 1.0


@pytest.mark.slow
def test_memory_stays_below_the_size_of_the_file(tmp_path: Path) -> None:
    """The 2 GB run of large.py, made small: 40 MB of trace take less than 40 MB of memory."""
    script = Path(__file__).parent / "large.py"
    command = [sys.executable, str(script), "--gigabytes", "0.04", "--folder", str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert found["file_mb"] >= 40 and found["steady"] == found["steps"]
    assert found["peak_mb"] - found["before_mb"] < 40
