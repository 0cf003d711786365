"""`sonant serve` as an operator runs it: a process of its own, which can be measured, told to stop, and killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

Run = Callable[..., tuple["subprocess.Popen[str]", str]]


@contextmanager
def server_processes(ready_s: float = 60.0, log: TextIO | None = None) -> Iterator[Run]:
    """`run(folder, "--drain", "5")` → the process and its address, once it is ready. Killed at the end."""
    running: list[subprocess.Popen[str]] = []

    def run(folder: Path, *options: str, beside: Sequence[Path] = ()) -> tuple[subprocess.Popen[str], str]:
        folders = map(str, (folder, *beside))
        command = [sys.executable, "-m", "sonant.cli.main", "serve", *folders, "--port", "0", *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SONANT_")} | {"OMP_NUM_THREADS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **quiet, env=environment)
        running.append(process)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                url = found[0]
                break
        else:
            raise RuntimeError("the server ended before it had an address:\n" + "".join(said))
        threading.Thread(target=_pass_on, args=(process.stderr, log), daemon=True).start()  # or the pipe fills up
        deadline = time.monotonic() + ready_s
        while not _is_ready(url):
            assert process.poll() is None and time.monotonic() < deadline, "the server did not get ready"
            time.sleep(0.05)
        return process, url

    try:
        yield run
    finally:
        for process in running:
            process.kill()
            process.wait(10)


def _pass_on(lines: TextIO, log: TextIO | None) -> None:
    for line in lines:
        if log is not None:
            log.write(line)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10):
            return True
    except urllib.error.URLError:
        return False


def resident_mib(process: subprocess.Popen[str] | None = None) -> float:
    """Resident MiB of a process; None: of this one."""
    pages = int(Path(f"/proc/{process.pid if process else 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(process: subprocess.Popen[str]) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))
