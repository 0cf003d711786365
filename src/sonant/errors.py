"""What can go wrong, as types. Each message says what was wrong and what to do about it.

The caller can correct a `BadRequest` or a subclass of it; an `EngineError` or a subclass is our fault. Serving maps
them to HTTP in one place, by class.
"""

import errno


class SonantError(Exception):
    """Every error that Sonant raises on purpose."""


class BadRequest(SonantError, ValueError):
    """The request cannot be spoken as asked; the engine goes on serving others."""


class BadText(BadRequest):
    """The text is empty, too long, not valid Unicode, or holds nothing that can be spoken."""


class NothingToSay(BadText):
    """There are letters or digits, but none that this model has a sound for. Of a longer text that part is left out."""


class UnknownVoice(BadRequest):
    """The model has no voice of that name, or takes none."""


class UnknownLanguage(BadRequest):
    """The model does not speak that language."""


class BadSampling(BadRequest):
    """A sampling value is out of range or not a number."""


class BadAudio(BadRequest):
    """A reference clip cannot be used."""


class Unsupported(BadRequest):
    """This checkpoint cannot do what was asked (cloning with CustomVoice, for example)."""


class CheckpointError(SonantError):
    """The folder is not a checkpoint we can load; the message names the file or tensor."""


class ConfigError(SonantError, ValueError):
    """An engine option is unknown or out of range."""


class EngineError(SonantError, RuntimeError):
    """The engine itself failed; requests in flight end with this."""


class EngineClosed(EngineError):
    """The engine was shut down, or its step thread has died."""


class Overloaded(EngineError):
    """Too many requests are waiting; try again in `retry_s` seconds."""

    def __init__(self, message: str, retry_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class TooLate(Overloaded):
    """The request has waited for as long as its first sound may take, and none came."""


class Aborted(SonantError):
    """The request was aborted before its speech was complete."""


class VoiceExists(BadRequest):
    """The name is taken, or voices still need what was to be deleted; serving answers 409."""


class UnknownConsent(BadRequest):
    """No consent has that id."""


class StoreError(SonantError):
    """The voice store cannot be read or written: disk, permissions or damage, never the caller's fault."""


# The system's errors: nothing there, not allowed, of another kind, read-only; an address in use, or not this machine's.
_PERMANENT_ERRNOS = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.EADDRINUSE,
    errno.EADDRNOTAVAIL,
}  # fmt: skip


def is_permanent(error: BaseException) -> bool:
    """Whether the same start would fail again for the same reason, until a person changes something.

    A server then ends with exit code 2 and the message. Any other error may pass (memory that another process holds, a
    driver that starts anew) and is worth another try.
    """
    if isinstance(error, OSError):
        return error.errno in _PERMANENT_ERRNOS
    return isinstance(error, ConfigError | CheckpointError | StoreError | ImportError)
