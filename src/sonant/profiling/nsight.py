"""Reads what `nsys export --type sqlite` writes.

Tables and columns vary with nsys versions and with what was traced, so each is used only if it exists. Times are
nanoseconds already. Rows are read through a cursor, never all at once.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from sonant.profiling.events import Kind, OnRead, Trace, TraceBuilder, TracedGpu, TraceError

_KERNEL, _COPY, _SET = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
_CALLS, _GRAPHS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
# The values of CUpti_ActivityMemcpyKind, with Kineto's names for them.
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
# nsys' own numbering, for files without a table ENUM_CUDA_MEM_KIND.
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_NVTX_RANGES = (59, 60)  # push/pop, start/end
_SUFFIX = re.compile(r"_v\d+$|_ptsz$")
_TID = 0xFFFFFF  # the thread in a globalTid, whose upper bits are the process …
_PROCESS = "(t.{} >> 24 & 0xFFFFFF)"  # … as are those of a globalPid


def read_nsight(path: Path, on_read: OnRead = lambda share: None) -> Trace:
    builder = TraceBuilder()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            _Reader(db, builder, path).read(on_read)
    except sqlite3.Error as e:
        raise TraceError(f"{path} is a damaged or incomplete SQLite file ({e}); export it again") from e
    return builder.build(path)


class _Reader:
    def __init__(self, db: sqlite3.Connection, builder: TraceBuilder, path: Path) -> None:
        self.db, self.builder = db, builder
        self.tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        if "StringIds" not in self.tables:
            raise TraceError(f"{path} is SQLite, but no Nsight Systems export: it has no table StringIds")
        self.process = self._busiest_process()

    def read(self, on_read: OnRead) -> None:
        readers = (self._kernels, self._copies, self._sets, self._graphs, self._calls, self._ranges, self._facts)
        for done, read in enumerate(readers):
            on_read(done / len(readers))
            read()
        on_read(1.0)

    def _rows(self, table: str, wanted: dict[str, str]) -> Iterator[tuple[int, ...]]:
        """The process's rows of a table. `wanted` maps each column to the value used where the table has none."""
        if table not in self.tables:
            return iter(())
        there = self._columns(table)
        columns = ", ".join(f"COALESCE(t.{c}, {other})" if c in there else other for c, other in wanted.items())
        owner = next((column for column in ("globalPid", "globalTid") if column in there), None)
        ours = "" if self.process is None or owner is None else f"WHERE {_PROCESS.format(owner)} = {self.process}"
        return self.db.execute(f"SELECT {columns} FROM {table} AS t {ours}")

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self.db.execute(f"PRAGMA table_info({table})")}

    def _busiest_process(self) -> int | None:
        """The process with the most work, if the file tells processes apart; only its events are read.

        Each process counts its calls from 1, so that a kernel of one would be joined to a call of another.
        """
        time: Counter[int] = Counter()
        for table in (_KERNEL, _COPY, _SET, _GRAPHS):
            if "globalPid" in self._columns(table):
                sums = f"SELECT {_PROCESS.format('globalPid')} AS p, SUM(t.end - t.start) FROM {table} AS t GROUP BY p"
                time.update({process: ns or 0 for process, ns in self.db.execute(sums) if process is not None})
            elif table in self.tables:
                return None
        if len(time) > 1:
            self.builder.remarks.append("work of other processes was left out")
        return time.most_common(1)[0][0] if time else None

    def _text(self, number: int | None) -> str:
        row = self.db.execute("SELECT value FROM StringIds WHERE id = ?", (number,)).fetchone()
        return "unknown" if row is None else str(row[0])

    def _named(self) -> Callable[[int], int]:
        """A function from a StringIds number to ours, which looks each up once."""
        known: dict[int, int] = {}

        def find(number: int) -> int:
            if number not in known:
                known[number] = self.builder.names.number(_SUFFIX.sub("", self._text(number)))
            return known[number]

        return find

    def _kernels(self) -> None:
        add, named = self.builder.of[Kind.KERNEL].add, self._named()
        name = "t.shortName" if self._has_short_names() else "0"
        wanted = {"demangledName": name, "start": "0", "end": "0", "streamId": "0", "correlationId": "0"}
        for text, start, end, stream, correlation, device in self._rows(_KERNEL, {**wanted, "deviceId": "0"}):
            add(Kind.KERNEL, named(text), start, end, stream, correlation, 0, 0, device)

    def _copies(self) -> None:
        add, number, memory = self.builder.of[Kind.MEMCPY].add, self.builder.names.number, self._memory_kinds()
        wanted = {"start": "0", "end": "0", "streamId": "0", "correlationId": "0", "bytes": "0", "deviceId": "0"}
        wanted |= {"copyKind": "0", "srcKind": "-1", "dstKind": "-1"}
        for start, end, stream, correlation, size, device, kind, source, target in self._rows(_COPY, wanted):
            ends = f" ({memory.get(source, 'Unknown')} -> {memory.get(target, 'Unknown')})"
            name = number(f"Memcpy {_COPY_KINDS.get(kind, 'Unknown')}{ends}")
            add(Kind.MEMCPY, name, start, end, stream, correlation, 0, size, device)

    def _sets(self) -> None:
        add, name = self.builder.of[Kind.MEMSET].add, self.builder.names.number("Memset (Device)")
        wanted = {"start": "0", "end": "0", "streamId": "0", "correlationId": "0", "bytes": "0", "deviceId": "0"}
        for start, end, stream, correlation, size, device in self._rows(_SET, wanted):
            add(Kind.MEMSET, name, start, end, stream, correlation, 0, size, device)

    def _graphs(self) -> None:
        """Reads graphs that were traced whole, without their kernels."""
        add, count = self.builder.of[Kind.KERNEL].add, 0
        wanted = {"graphId": "0", "start": "0", "end": "0", "streamId": "0", "correlationId": "0", "deviceId": "0"}
        for graph, start, end, stream, correlation, device in self._rows(_GRAPHS, wanted):
            name = self.builder.names.number(f"CUDA graph {graph} (whole)")
            add(Kind.KERNEL, name, start, end, stream, correlation, 0, 0, device)
            count += 1
        if count:
            self.builder.remarks.append(
                f"{count} graph launches were traced whole, so that nothing is known of their kernels: "
                "record with nsys profile --cuda-graph-trace=node"
            )

    def _calls(self) -> None:
        add, named = self.builder.of[Kind.RUNTIME].add, self._named()
        wanted = {"nameId": "-1", "start": "0", "end": "0", "globalTid": "0", "correlationId": "0"}
        for text, start, end, thread, correlation in self._rows(_CALLS, wanted):
            add(Kind.RUNTIME, named(text), start, end, thread & _TID, correlation, 0, 0, 0)

    def _ranges(self) -> None:
        add, number = self.builder.of[Kind.RANGE].add, self.builder.names.number
        wanted = {"text": "NULL", "textId": "NULL", "start": "0", "end": "NULL", "globalTid": "0", "eventType": "59"}
        for text, text_id, start, end, thread, kind in self._rows("NVTX_EVENTS", wanted):
            if kind in _NVTX_RANGES and end is not None:
                name = number(str(text) if text is not None else self._text(text_id))
                add(Kind.RANGE, name, start, end, thread & _TID, 0, 0, 0, 0)

    def _facts(self) -> None:
        wanted = {"name": "'unknown'", "memoryBandwidth": "0"}
        for name, bandwidth in self._rows("TARGET_INFO_GPU", wanted):
            if self.builder.gpu is None:
                self.builder.gpu = TracedGpu(str(name), float(bandwidth) or None)
        for thread, name_id in self._rows("ThreadNames", {"globalTid": "0", "nameId": "-1"}):
            self.builder.threads[thread & _TID] = self._text(name_id)
        self.builder.made_by = "Nsight Systems"

    def _memory_kinds(self) -> dict[int, str]:
        kinds = dict(_MEMORY_KINDS)
        for number, label in self._rows("ENUM_CUDA_MEM_KIND", {"id": "-1", "label": "''"}):
            kinds[number] = str(label).split()[0] if label else "Unknown"
        return kinds

    def _has_short_names(self) -> bool:
        return "shortName" in self._columns(_KERNEL)  # no columns if there is no such table
