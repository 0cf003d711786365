"""The allocator does what it is asked to do."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import pytest

from sonant.serving import idle_memory


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_the_allocator_takes_what_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores a threshold that is too large without a word."""
    mallopt, taken = ctypes.CDLL(None).mallopt, dict[int, bool]()

    class Library:
        @staticmethod
        def mallopt(what: int, value: int) -> None:
            taken[what] = mallopt(what, value) == 1

    monkeypatch.setattr(idle_memory.ctypes, "CDLL", lambda _: Library)
    idle_memory.share_arenas()
    idle_memory.keep_scratch()
    assert taken == {-8: True, -3: True, -1: True}


@pytest.mark.parametrize(
    ("seen", "given_back"), [([(1, 500), (0, 0), (2, 0)], 0), ([(1, 0), (9, 0), (2, 0)], 1), ([(0, 4 << 20)], 1)]
)
def test_memory_is_given_back_after_many_and_not_after_a_few(
    seen: list[tuple[int, int]], given_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a few it is kept, since the next request would have to wait for new pages."""
    calls: list[float] = []
    monkeypatch.setattr(idle_memory, "_give_back", lambda: calls.append(0))
    memory = idle_memory.IdleMemory()
    for second, (running, held_bytes) in enumerate([*seen, *[(0, 0)] * 8]):
        memory.look(running, held_bytes, float(second))
    for thread in threading.enumerate():
        if thread.name == "sonant-idle-memory":
            thread.join()
    assert len(calls) == given_back


@pytest.mark.parametrize(("given", "kept"), [(None, "256"), ("9", "9")])
def test_code_for_shapes_is_bounded_unless_somebody_has_said_otherwise(
    given: str | None, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    monkeypatch.setattr(idle_memory, "_ask", lambda what, value: None)
    idle_memory.keep_scratch()
    assert os.environ[name] == kept
