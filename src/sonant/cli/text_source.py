"""Where the text to be spoken comes from: the command line, or stdin as strict UTF-8."""

from __future__ import annotations

import sys

from sonant.errors import BadText

STDIN = "-"


def read_text(argument: str | None) -> str:
    """The argument itself; all of stdin for `-`, or for nothing when something is piped in."""
    if argument is not None and argument != STDIN:
        return argument
    if argument is None and sys.stdin.isatty():
        raise BadText('no text was given: sonant say "Hello.", or pipe it in')
    return decode(sys.stdin.buffer.read())


def decode(data: bytes) -> str:
    """Bytes that are not UTF-8 are an error: guessing would read out wrong words."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # the byte order mark that some editors write
    except UnicodeDecodeError as e:
        byte = data[e.start]
        raise BadText(
            f"the text from stdin is not UTF-8: byte 0x{byte:02x} at offset {e.start} ({e.reason}); "
            "convert it, with `iconv -t UTF-8` for example"
        ) from None
