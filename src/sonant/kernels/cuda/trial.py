"""Lets a kernel be tried before it is used, even if its first use is inside a capture.

Most graphs are captured without a run before (engine/graphs.py), so a trial may come in the middle of a capture. What
it copies and waits for must not be in the graph: it runs on a stream of its own, which a relaxed capture allows, and in
memory that is not the graph's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def beside_captures(device: torch.device) -> Iterator[None]:
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield
