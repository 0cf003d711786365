"""The path of a request, file by file, as docs/architecture.md lists it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import sonant

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"
HEADING = "## From HTTP to the first byte"


def listed() -> list[str]:
    section = DOCS.read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    return re.findall(r"`([a-z_0-9/]+\.py)`", section)


def test_a_request_passes_through_the_files_that_the_docs_list(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A file that is not listed there is a detour that should be noticed."""
    script = Path(__file__).with_name("request_path.py")
    command = [sys.executable, str(script), str(tiny_checkpoints["custom"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    passed = done.stdout.split()
    assert sorted(set(passed) - set(listed())) == []
    assert len(passed) > 40, "the tracer saw too little"


def test_the_docs_list_files_that_exist_once_each() -> None:
    """And few in each process: whoever works on one half need not read the other."""
    files = listed()
    package = Path(sonant.__file__).parent
    assert len(files) == len(set(files))
    assert files.index("serving/channel/engine_port.py") < 36 and len(files) < 70
    assert [file for file in files if not (package / file).is_file()] == []
