"""Reads a trace from a file, whichever profiler wrote it."""

from __future__ import annotations

from pathlib import Path

from sonant.profiling.events import OnRead, Trace, TraceError
from sonant.profiling.kineto import read_kineto
from sonant.profiling.nsight import read_nsight
from sonant.profiling.threads import unify

_SQLITE = b"SQLite format 3\x00"


def read_trace(path: Path, on_read: OnRead = lambda share: None) -> Trace:
    """Formats are told apart by content, not by name. Raises `TraceError` with what is wrong and what to do."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder; name a trace in it") from None
    except OSError as e:
        raise TraceError(f"{path} cannot be read: {e.strerror}") from e
    if not head:
        raise TraceError(f"{path} is empty: the profiler wrote nothing, or is still writing")
    if head == _SQLITE:
        return unify(read_nsight(path, on_read))
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise TraceError(f"{path} is Nsight's own format: nsys export --type sqlite {path.name}")
    return unify(read_kineto(path, on_read))
