"""Errors from one process to another: by the name of a known class, never as objects."""

from __future__ import annotations

from sonant import errors
from sonant.serving.refused import Refused

_KNOWN = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.SonantError)
}


def name_of(error: Exception) -> str:
    """The client sees any error that is not ours as a failure of the engine."""
    return type(error).__name__ if type(error).__name__ in _KNOWN else "EngineError"


def text_of(error: Exception) -> str:
    return str(error) if isinstance(error, errors.SonantError) else f"{type(error).__name__}: {error}"


def error_from(name: str, message: str, status: int = 0, code: str = "", retry_s: float = 0.0) -> Exception:
    if status:
        return Refused(status, code, message, retry_s=retry_s)
    kind: type[Exception] = _KNOWN.get(name, errors.EngineError)
    return kind(message, retry_s or 1.0) if issubclass(kind, errors.Overloaded) else kind(message)
