"""Loads weights onto a GPU: threads read files ahead of the copies, into pinned memory that the GPU reads by itself.

A copy from a mapping would read a file page by page in one thread, and copy it once more through the driver's own
memory. Here several threads read the pieces of one window into a pinned buffer, while those of earlier windows are
copied from theirs. A buffer is reused once the device has copied its contents.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sonant.errors import CheckpointError, ConfigError
from sonant.models.weights.host_memory import HostMemory
from sonant.models.weights.source import Read, StoredTensor

_LOG = logging.getLogger(__name__)
BUFFER_BYTES = 16 << 20
_BUFFERS = 4
_THREADS = 8
_AT_ONCE = 2 << 20  # bytes that one thread reads at a time
_ALIGNMENT = 64


@dataclass(frozen=True)
class FilePlace:
    """Where a tensor begins."""

    path: Path
    offset: int


@runtime_checkable
class Placed(Protocol):
    """A source whose files hold tensors as plain bytes."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...
    def place_of(self, name: str) -> FilePlace: ...


@dataclass(frozen=True)
class Rows:
    """Rows [start, end) of a stored tensor."""

    name: str
    start: int
    end: int


Window = TypeVar("Window")


@dataclass
class _Buffer:
    memory: Tensor  # [bytes] uint8
    taken: torch.cuda.Event | None = None  # recorded after the device's copies from it

    def wait(self) -> None:
        if self.taken is not None:
            self.taken.synchronize()


class StagedReader:
    """Reads windows of rows for tensors on `device`, which need not be a GPU."""

    def __init__(self, source: Placed, device: torch.device) -> None:
        self.source, self.device = source, device

    def windows(self, wanted: Sequence[tuple[Window, Sequence[Rows]]]) -> Iterator[tuple[Window, Read]]:
        """Each window with a function that reads its rows. What it returns is valid on the host until the next window
        is requested; copies to the device, on the current stream, may still be in flight then."""
        sizes = [sum(self._room(rows) for rows in each) for _, each in wanted]
        buffers = self._buffers(min(_BUFFERS, len(wanted)), max(sizes, default=0))
        ahead: deque[tuple[Window, _Buffer, dict[Rows, Tensor], list[Future[None]]]] = deque()
        try:
            with self._files() as files, ThreadPoolExecutor(_THREADS, "sonant-weights") as pool:
                for number, (window, each) in enumerate(wanted):
                    buffer = buffers[number % len(buffers)]
                    if len(ahead) == len(buffers):
                        yield from self._given(*ahead.popleft())
                    buffer.wait()
                    views, parts = self._laid_out(each, buffer.memory)
                    reads = [pool.submit(_read, files, part) for part in parts]
                    ahead.append((window, buffer, views, reads))
                while ahead:
                    yield from self._given(*ahead.popleft())
        finally:
            for buffer in buffers:
                buffer.wait()

    def _given(
        self, window: Window, buffer: _Buffer, views: Mapping[Rows, Tensor], reads: Sequence[Future[None]]
    ) -> Iterator[tuple[Window, Read]]:
        for done in reads:
            done.result()
        yield window, lambda name, start, end: views[Rows(name, start, end)]
        if self.device.type == "cuda":
            buffer.taken = torch.cuda.Event()
            buffer.taken.record(torch.cuda.current_stream(self.device))

    def _buffers(self, count: int, size: int) -> list[_Buffer]:
        host = HostMemory(frozenset(), self.device)
        like = torch.empty(size, dtype=torch.uint8, device="meta")
        try:
            return [_Buffer(host.take(f"buffer {n}", [like]).memory) for n in range(count)]
        except ConfigError as error:  # The driver then copies everything once more.
            _LOG.info("weights are read into memory that the GPU does not reach: %s", error)
            return [_Buffer(torch.empty(size, dtype=torch.uint8)) for _ in range(count)]

    def _bytes(self, rows: Rows) -> int:
        return self.source.tensors[rows.name].row_bytes * (rows.end - rows.start)

    def _room(self, rows: Rows) -> int:
        return -(-self._bytes(rows) // _ALIGNMENT) * _ALIGNMENT

    def _laid_out(self, each: Sequence[Rows], memory: Tensor) -> tuple[dict[Rows, Tensor], list[_Part]]:
        """The rows as tensors in this memory, and the parts that must be read to fill them."""
        views, parts, at = dict[Rows, Tensor](), list[_Part](), 0
        for rows in each:
            stored, place, size = self.source.tensors[rows.name], self.source.place_of(rows.name), self._bytes(rows)
            own = memory[at : at + size]
            views[rows] = own.view(stored.dtype).view(rows.end - rows.start, *stored.shape[1:])
            first = place.offset + rows.start * stored.row_bytes
            into = own.numpy().data
            parts += [_Part(place.path, first + n, into[n : n + _AT_ONCE]) for n in range(0, size, _AT_ONCE)]
            at += self._room(rows)
        return views, parts

    @contextmanager
    def _files(self) -> Iterator[dict[Path, int]]:
        with ExitStack() as stack:
            yield {
                path: stack.enter_context(path.open("rb", buffering=0)).fileno()
                for path in {self.source.place_of(name).path for name in self.source.tensors}
            }


@dataclass(frozen=True)
class _Part:
    path: Path
    offset: int
    into: memoryview


def _read(files: Mapping[Path, int], part: _Part) -> None:
    """Fill the part's memory from its file; the GIL is released meanwhile."""
    done = 0
    while done < len(part.into):
        count = os.preadv(files[part.path], [part.into[done:]], part.offset + done)
        if count == 0:
            raise CheckpointError(f"{part.path} has become shorter while it was read")
        done += count
