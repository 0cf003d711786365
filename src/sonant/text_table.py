"""Tables for a terminal, as every command that measures prints them."""

from __future__ import annotations

from collections.abc import Sequence


def grid(rows: Sequence[Sequence[str]], *, words_left: bool = False) -> str:
    """Columns as wide as they need, aligned right; with `words_left`, those that hold words are aligned left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    left = [words_left and any(map(_has_word, column[1:])) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if to_the_left else cell.rjust(width)
            for cell, width, to_the_left in zip(row, widths, left, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _has_word(cell: str) -> bool:
    return any(c.isalpha() and c != "µ" for c in cell)  # the µ of a unit is no word
