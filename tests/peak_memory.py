"""How much memory a piece of Python takes at most, measured in a process of its own.

`ru_maxrss` is of no use: a process inherits its parent's figure, and pytest's is large enough to hide anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_STATUS = Path("/proc/self/status")
needs_peak_memory = pytest.mark.skipif(not _STATUS.exists(), reason="only Linux tells a process its own peak memory")


def peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
