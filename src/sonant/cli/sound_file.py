"""Where sound is written: a file that appears whole or not at all, or stdout, sample by sample.

A file grows under another name beside its own and is renamed when the speech is complete, so that neither an
error nor Ctrl-C leaves half of one. Everything is 16-bit mono.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import soundfile as sf

from sonant.audio.pcm import growing_wav_header, pcm16
from sonant.errors import ConfigError, SonantError
from sonant.types import Samples

STDOUT = "-"
FORMATS = ("wav", "flac", "pcm")
_BY_SUFFIX = {".wav": "wav", ".flac": "flac", ".pcm": "pcm", ".raw": "pcm"}
_LIBSNDFILE = {"wav": "WAV", "flac": "FLAC", "pcm": "RAW"}


class OutputError(SonantError):
    """The sound cannot be written where it should go."""


class SoundOutput(Protocol):
    """Enter it before the model is loaded, so that a bad place is an error at once. Leaving it completes the sound."""

    name: str

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None: ...
    def begin(self, sample_rate: int) -> None: ...
    def write(self, samples: Samples) -> None: ...


def open_output(name: str, format: str | None) -> SoundOutput:
    """The output for `--out` and `--format`. By default the suffix tells the format; on stdout it is WAV."""
    if name == STDOUT:
        return SoundStdout(format or "wav")
    format = format or _BY_SUFFIX.get(Path(name).suffix.lower())
    if format is None:
        raise ConfigError(
            f"the name {name!r} does not tell the format: end it in .wav, .flac or .pcm, or give --format"
        )
    return SoundFile(Path(name), format)


class SoundFile:
    def __init__(self, path: Path, format: str) -> None:
        self.name = str(path)
        # A link stays a link: its target is what is replaced.
        self.path = Path(os.path.realpath(path))
        self.part = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        self.format = format
        self.sound: sf.SoundFile | None = None

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_file():
            raise OutputError(f"{self.name} is not a regular file; `--out -` writes to stdout")
        try:
            self.part.open("xb").close()
        except OSError as e:
            raise OutputError(f"cannot write {self.name}: {e.strerror}") from e
        return self

    def begin(self, sample_rate: int) -> None:
        try:
            self.sound = sf.SoundFile(
                self.part, "w", sample_rate, 1, "PCM_16", endian="FILE", format=_LIBSNDFILE[self.format]
            )
        except (OSError, sf.SoundFileError) as e:
            raise OutputError(f"cannot write {self.name}: {e}") from e

    def write(self, samples: Samples) -> None:
        assert self.sound is not None
        try:
            self.sound.write(pcm16(samples))
            self.sound.flush()
        except (OSError, sf.SoundFileError, AssertionError) as e:  # soundfile asserts that all was written
            raise OutputError(f"cannot write {self.name}: is the disk full? ({e})") from e

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if self.sound is not None:
                self.sound.close()
            if kind is None:
                os.replace(self.part, self.path)
        except (OSError, sf.SoundFileError) as e:
            raise OutputError(f"cannot write {self.name}: {e}") from e
        finally:
            self.part.unlink(missing_ok=True)


class SoundStdout:
    def __init__(self, format: str) -> None:
        self.name = "stdout"
        self.format = format
        self.pipe: BinaryIO = sys.stdout.buffer

    def __enter__(self) -> Self:
        if self.format == "flac":
            raise ConfigError("FLAC writes its header last, which stdout does not allow: use --format wav or pcm")
        if self.pipe.isatty():
            raise ConfigError("stdout is a terminal: pipe it into a player or a file")
        return self

    def begin(self, sample_rate: int) -> None:
        if self.format == "wav":
            self.pipe.write(growing_wav_header(sample_rate))
            self.pipe.flush()

    def write(self, samples: Samples) -> None:
        self.pipe.write(pcm16(samples).tobytes())
        self.pipe.flush()  # a listener hears it now

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        pass
