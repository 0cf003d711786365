"""What an operator can set. The command line, the environment and a config file all fill this one class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sonant.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # none: open to whoever reaches the port
    max_body_bytes: int = 16 << 20  # of any request; a reference clip travels as base64
    max_first_audio_s: float = 10.0  # a request that would wait longer for its first sound is refused
    max_streams_per_client: int = 256  # by API key, else by address
    voices_folder: Path | None = None  # uploaded voices; None: uploading is off
    consent: Literal["required", "asserted"] = "required"  # asserted: an uploader's written statement will do
    drain_s: float = 30.0  # how long requests may go on after SIGTERM

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be from 0 to 65535, not {self.port}")
        for name in ("max_body_bytes", "max_first_audio_s", "max_streams_per_client"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be over 0, not {getattr(self, name)}")
        if any(not key or key != key.strip() for key in self.api_keys):
            raise ConfigError("an API key is empty or has white space around it")
