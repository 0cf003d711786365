"""The format of log lines: text for people, or JSON for programs. A request's facts are fields in either."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Literal

from sonant.errors import SonantError

LogFormat = Literal["text", "json"]

_BARE = re.compile(r"[^\s\"=\\]+")  # a value that needs no quotes
_UNWANTED = ('%s - "WebSocket %s" ', "connection open", "connection closed")


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "request", None)
        if facts is not None:
            return f"{_time(record)} request " + " ".join(f"{name}={_shown(value)}" for name, value in facts.items())
        return f"{_time(record)} {super().format(record)}"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        facts = getattr(record, "request", None)
        line |= facts if facts is not None else {"message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class WithoutAccesses(logging.Filter):
    """Drops uvicorn's own lines for each WebSocket: ours tell more, and theirs may show a key that came in a query."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_UNWANTED)


class BrokenStreams(logging.Filter):
    """Makes one line of each stream that the engine's failure broke off, instead of hundreds of our tracebacks.

    Such a stream ends with an exception because only that makes a server close the connection before the body is whole.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        while error is not None and not isinstance(error, SonantError):
            error = error.__cause__ or error.__context__
        if error is not None:
            record.msg, record.args, record.exc_info = "a stream was broken off: %s", (str(error),), None
        return True


def configure_logging(level: str, form: LogFormat) -> None:
    """Log to stderr, for the whole process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter("%(levelname)s: %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _shown(value: object) -> str:
    text = str(value)
    return text if _BARE.fullmatch(text) and text.isprintable() else json.dumps(text)
