"""A kernel is tried before it is used, also when it is first met inside a capture.

Most graphs are captured without a run before them (engine/graphs.py), so a try may come in the middle of one. What it
copies and waits for must not be in the graph: it runs on a stream of its own, which a relaxed capture allows, and in
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
