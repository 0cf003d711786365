"""`sonant serve` with processes that take notes."""

from __future__ import annotations

import sys

from sonant.cli.main import main
from sonant.serving.processes import launcher

_NOTED = {"engine_process": "first_sound.engine", "front_end_process": "first_sound.front_end"}

if __name__ == "__main__":
    start = launcher.Child.__init__

    def noted(child: launcher.Child, name: str, module: str, setup: object) -> None:
        start(child, name, _NOTED[module.rpartition(".")[2]], setup)  # type: ignore[arg-type]

    launcher.Child.__init__ = noted  # type: ignore[method-assign, assignment]
    sys.exit(main(["serve", *sys.argv[1:]]))
