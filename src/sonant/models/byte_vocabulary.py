"""The single bytes of a byte-level vocabulary, which tokenises any text without another project's data."""

from __future__ import annotations

from itertools import count


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in GPT-2's vocabulary files and those made like them."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = count(256)
    return [chr(b if b in printable else next(spare)) for b in range(256)]
