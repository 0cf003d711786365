"""Records the order in which one child compiles: run by test_compile_ahead.py, since it forks and must have no threads.

Compiling a kernel only appends to a file of notes: the pool, its order and its end are tested.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonant.engine.compile_process import Compiling

NOTES = Path(sys.argv[1])


def note(what: str) -> None:
    with NOTES.open("a", encoding="utf-8") as file:
        print(what, file=file)


@dataclass(frozen=True)
class Form:
    name: str
    is_slow: bool = False
    module: str = "nowhere"
    key: str = ""

    def compile(self, gpu: object) -> str:
        note(self.name)
        if self.name == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "broken":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/kernels")
        return self.name


class Stages:
    """Stages of a rehearsal: each needs some kernels, and may share them with others."""

    gpu = None

    def __init__(self, *stages: tuple[Form, ...]) -> None:
        self.stages = stages

    def __len__(self) -> int:
        return len(self.stages)

    def run(self, stage: int) -> list[Form]:
        note(f"stage {stage}")
        return list(self.stages[stage])


def main() -> None:
    quick, other, slow = Form("quick"), Form("other"), Form("slow", is_slow=True)
    cases = {
        "order": Stages((quick,), (quick, slow), (other,), (other,), (quick,), (), ()),
        "broken": Stages((quick,), (Form("broken"),), (other,)),
        "deadly": Stages((quick,), (Form("deadly"),), (other,)),
    }
    stages: Any = cases[sys.argv[2]]
    compiling = Compiling(stages, workers=1)
    compiling.finish()
    found = {"ready": compiling.ready, "failures": compiling.failures, "folders": compiling.folders}
    print(json.dumps(found | {"notes": NOTES.read_text(encoding="utf-8").splitlines()}))


if __name__ == "__main__":
    main()
