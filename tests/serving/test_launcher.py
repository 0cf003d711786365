"""The launcher's children where starting one of them fails, or is overtaken by a signal."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest

from sonant.config import EngineConfig
from sonant.serving.options import ModelOptions, ServeOptions
from sonant.serving.processes.launcher import Child, Launcher
from sonant.serving.processes.setup import Setup

_SLEEPER = "import sys; sys.stdin.read()"  # until its parent is gone
_start = asyncio.create_subprocess_exec


def launcher_in(folder: Path) -> Launcher:
    setup = Setup(
        folder=folder, scratch=folder, model=ModelOptions(), serving=ServeOptions(), engine=EngineConfig(),
        host="127.0.0.1", port=1,
    )  # fmt: skip
    return Launcher(setup, 1)


async def sleeper(*_: str, **options: Any) -> Process:
    return await _start(sys.executable, "-c", _SLEEPER, **options)


async def running(*children: Child) -> None:
    async with asyncio.timeout(20):
        while not all(child.process is not None for child in children):
            await asyncio.sleep(0.01)


def test_a_process_that_could_not_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When memory or processes are short, which may be what killed the one before."""
    tried = 0

    async def at_first_not(*command: str, **options: Any) -> Process:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await sleeper(*command, **options)

    async def run() -> int:
        launcher = launcher_in(tmp_path)
        ended = asyncio.create_task(launcher.run())
        await running(*launcher.engines, *launcher.front_ends)
        assert launcher.engines[0].deaths == 0
        launcher._on_signal()
        return await asyncio.wait_for(ended, 20)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", at_first_not)
    assert asyncio.run(run()) == 0 and tried == 3


def test_a_signal_ends_processes_that_are_only_being_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launchers: list[Launcher] = []

    async def signalled_meanwhile(*command: str, **options: Any) -> Process:
        process = await sleeper(*command, **options)
        if not launchers[0]._closing.is_set():
            launchers[0]._on_signal()
        await asyncio.sleep(0.1)  # in which front ends, or engines, are told to end
        return process

    async def run() -> int:
        launchers.append(launcher_in(tmp_path))
        return await asyncio.wait_for(launchers[0].run(), 20)  # less than front ends have for draining

    monkeypatch.setattr(asyncio, "create_subprocess_exec", signalled_meanwhile)
    assert asyncio.run(run()) == 0
