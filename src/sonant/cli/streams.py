"""Makes stdin, stdout and stderr usable for every command, whatever it was started with."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper


def prepare_streams() -> None:
    """Open closed streams on /dev/null; else the next file to be opened would get their number, and what is printed.

    Characters that the terminal's encoding lacks, as Latin-1 lacks … and →, are shown as question marks, so that a
    table that took minutes to measure is not lost.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, it is open for as long as the process is
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
