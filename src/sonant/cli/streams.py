"""stdin, stdout and stderr as every command can use them, whatever it was started with."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper


def prepare_streams() -> None:
    """What is closed is /dev/null, or the first file that is opened would take its number and get what is printed.

    What the terminal's encoding lacks, as Latin-1 lacks … and →, is shown as a question mark: a table that took minutes
    to measure is not lost for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, it is open for as long as the process is
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
