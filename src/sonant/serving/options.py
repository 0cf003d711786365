"""What an operator can set. The command line, the environment and a config file all fill these classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sonant.config import option
from sonant.cores import MOST_THREADS
from sonant.errors import ConfigError
from sonant.serving.observability.log_format import LogFormat

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model to load, and onto which device."""

    model: str | None = option(
        None,
        "folder of a published checkpoint, or the name of one from `sonant download`; by default the built-in voice",
    )
    device: str = option("auto", "where to run: auto, cpu, cuda, cuda:1 …")
    dtype: Dtype = option("auto", "data type of the language models")
    codec_dtype: Dtype = option("auto", "data type of the codec")
    threads: int | None = option(
        None, "threads of an engine on the CPU; by default OMP_NUM_THREADS, else one for each core but one"
    )

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads must be from 1 to {MOST_THREADS}, not {self.threads}")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    awake_models: int | None = option(
        None,
        "models that use the GPU's memory at a time, if several are served; the others sleep in host memory; by "
        "default all are awake",
    )
    host: str = option("127.0.0.1", "address to listen on; the default can only be reached from this machine")
    port: int = option(8000, "port to listen on; 0: any free one")
    api_keys: tuple[str, ...] = option(
        (), "API key that clients must send, or one of several; by default none is needed", flag="api-key"
    )
    api_key_file: Path | None = option(
        None, 'TOML file of API keys and their roles: "KEY" = ["speak", "voices", "metrics"]'
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "host name by which browsers reach this server if it is not this machine's own, such as a proxy's",
        flag="allowed-host",
    )
    workers: int | None = option(
        None, "processes that answer HTTP, beside the engine's; 0: one process does both; by default as the cores allow"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "how much is logged; clients' texts never are"
    )
    log_format: LogFormat = option("text", "text: for people; json: one JSON object a line; each request is one line")
    otlp_endpoint: str | None = option(
        None, "URL to send OpenTelemetry traces to (OTLP over HTTP), such as http://localhost:4318/v1/traces"
    )
    max_body_bytes: int = option(16 << 20, "largest body of any request, in bytes; a reference clip is sent as base64")
    max_bodies_bytes: int = option(
        256 << 20, "bytes of large bodies that one process may be receiving; further clients are told to try again soon"
    )
    max_first_audio_s: float = option(
        10.0, "seconds a request may wait for its first sound before it is refused", flag="max-first-audio"
    )
    max_streams_per_client: int | None = option(
        None,
        "streams that one client may have at once, by API key, else by address; a WebSocket counts as one; by default "
        "as many as there are rows, plus half the places in the queue",
    )
    max_requests_per_minute: int = option(
        0, "requests a minute that one client may send, by API key, else by address; 0: no limit"
    )
    voices_folder: Path | None = option(None, "folder for uploaded voices; by default uploading is off", flag="voices")
    voices_url: str | None = option(
        None,
        "s3://BUCKET/PREFIX for uploaded voices, shared by servers on many machines; --voices is then a folder for "
        "copies",
    )
    voice_aliases: tuple[str, ...] = option(
        (), "NAME=VOICE: the voice that a name stands for, one of OpenAI's names or any other", flag="voice-alias"
    )
    other_models: tuple[str, ...] = option(
        (), "NAME=/path or NAME=URL: where requests that name this model are forwarded", flag="other-model"
    )
    consent: Literal["required", "asserted"] = option(
        "required",
        "consent that an upload must come with. required: a recorded one; asserted: a written statement is enough",
    )
    allow_url: tuple[str, ...] = option(
        (), "HOST or HOST:PORT from which ref_audio may be fetched; by default URLs are refused"
    )
    cors_origins: tuple[str, ...] = option((), "web origin whose pages may call the API", flag="cors-origin")
    ws_idle_s: float = option(30.0, "seconds a WebSocket may be silent while nothing is spoken", flag="ws-idle")
    ws_max_message_bytes: int = option(
        4 << 20, "largest WebSocket message, in bytes; a reference clip is sent in the first"
    )
    ws_max_sessions: int = option(1024, "WebSockets open at once")
    receive_s: float = option(
        30.0, "seconds in which a request must arrive, plus one for every 16 KiB of it", flag="receive"
    )
    unread_s: float = option(60.0, "seconds for which a client may read nothing of what it is sent", flag="unread")
    max_unread_sound_s: float = option(
        60.0,
        "seconds of finished sound that may wait for a client; a long text goes on once the client has read some of it",
        flag="max-unread-sound",
    )
    drain_s: float = option(30.0, "seconds for which running requests may go on after SIGTERM", flag="drain")
    debug_profile: Literal["off", "on"] = option(
        "off", "whether POST /debug/profile records steps, which slows down all requests meanwhile"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be from 0 to 65535, not {self.port}")
        for name in (
            "awake_models",
            "max_body_bytes",
            "max_bodies_bytes",
            "max_first_audio_s",
            "max_streams_per_client",
            "ws_idle_s",
            "ws_max_message_bytes",
            "ws_max_sessions",
            "receive_s",
            "unread_s",
            "max_unread_sound_s",
        ):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be over 0, not {getattr(self, name)}")
        for name in ("max_requests_per_minute", "drain_s", "workers"):
            if not (getattr(self, name) or 0) >= 0:
                raise ConfigError(f"{name} must not be below 0, but is {getattr(self, name)}")
        if self.voices_url is not None and self.voices_folder is None:
            raise ConfigError("voices_url also needs a folder for copies: give --voices DIR")
        if any(not key or key != key.strip() for key in self.api_keys):
            raise ConfigError("an API key is empty or has white space around it")
        if any("/" in host or ":" in host for host in self.allowed_hosts):
            raise ConfigError("an allowed host is a name alone, such as tts.example.com: no scheme, port or path")
        if "*" in self.cors_origins and not self.has_keys:
            raise ConfigError("cors_origins '*' without an API key would let any web page use this server")

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys) or self.api_key_file is not None
