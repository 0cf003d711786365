"""What is asked of the allocator is something that it does."""

from __future__ import annotations

import ctypes
import sys

import pytest

from sonant.serving import idle_memory


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_the_allocator_takes_what_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of a threshold that is too large, and goes on as before."""
    mallopt, taken = ctypes.CDLL(None).mallopt, dict[int, bool]()

    class Library:
        @staticmethod
        def mallopt(what: int, value: int) -> None:
            taken[what] = mallopt(what, value) == 1

    monkeypatch.setattr(idle_memory.ctypes, "CDLL", lambda _: Library)
    idle_memory.share_arenas()
    idle_memory.keep_scratch()
    assert taken == {-8: True, -3: True, -1: True}
