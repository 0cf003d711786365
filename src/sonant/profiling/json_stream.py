"""Reads one large JSON text block by block: the members of its outer object, and the events of its long array.

The standard library's decoder does the parsing; this only ensures that no more than a few megabytes of text are in
memory, and that an error says where a file is broken.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn

from sonant.profiling.events import TraceError

_BLOCK_BYTES = 4 << 20
_LARGEST_VALUE = 128 << 20  # characters; a single event or header that is longer is taken for damage
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class JsonStream:
    def __init__(self, file: BinaryIO, name: object, on_read: Callable[[], None] = lambda: None) -> None:
        self._file, self._name, self._on_read = file, name, on_read
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text, self._at, self._passed, self._over = "", 0, 0, False

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            found = _BLANK.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, expected: str) -> None:
        found = self.peek()
        if found != expected:
            self._broken(f"{expected!r} was expected, not {found!r}" if found else "")
        self._at += 1

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                self._broken("it is nested too deeply")
            except json.JSONDecodeError as e:
                if len(self._text) - self._at > _LARGEST_VALUE or not self._more():
                    # For a string that is cut, `pos` is where it begins.
                    at_end = e.pos >= len(self._text) - 1 or e.msg.startswith("Unterminated string")
                    self._broken("" if self._over and at_end else e.msg)
                continue
            if end == len(self._text) and self._more():
                continue  # a number may go on in the next block
            self._at = end
            return value

    def members(self) -> Iterator[str]:
        """The keys of an object; the caller takes each value before the next key."""
        self.take("{")
        while self.peek() != "}":
            key = self.value()
            self.take(":")
            yield key
            if self.peek() != "}":
                self.take(",")
        self.take("}")

    def items(self) -> Iterator[Any]:
        """The values of an array. A comma before its end is accepted, since some writers leave one."""
        self.take("[")
        raw_decode = _DECODER.raw_decode
        while self.peek() != "]":
            try:  # at full speed in the common case, when the whole object is in memory
                value, self._at = raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError):
                value = self.value()
            yield value
            if self.peek() != "]":
                self.take(",")
        self.take("]")

    def _more(self) -> bool:
        if self._over:
            return False
        data = self._file.read(max(_BLOCK_BYTES, len(self._text) - self._at))
        self._over = not data
        self._on_read()
        self._passed += self._at
        self._text, self._at = self._text[self._at :] + self._decode(data, final=self._over), 0
        return True

    def _broken(self, what: str) -> NoReturn:
        where = self._passed + self._at
        if not what:
            raise TraceError(
                f"{self._name} ends in the middle, after {where:,} characters: it was cut, or the profiler was stopped "
                "while it wrote; record it again"
            )
        raise TraceError(f"{self._name} is not valid JSON near character {where:,}: {what}")
