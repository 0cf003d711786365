"""Which server is asked, and how: its address, the body of each request, and the kind of sound expected back."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from sonant.bench.client.prompts import Prompt
from sonant.errors import ConfigError

_LONGEST_LABEL = 63  # characters between two dots of a host's name; no resolver looks for an empty or a longer one
FORMATS = ("pcm", "wav", "mp3", "opus", "aac", "flac")


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    tls: bool
    path: str  # where the API is, without a slash at the end

    @classmethod
    def parse(cls, url: str) -> Address:
        wrong = f"--base-url {url!r} is no address of a server: write http://host:port"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
        except ValueError:  # a bracket that is not closed
            raise ConfigError(wrong) from None
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(f"--base-url {url!r} has a port that is no number from 1 to 65535") from None
        sendable = url.isascii() and url.isprintable() and " " not in url
        host = parts.hostname or ""
        named = all(0 < len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split("."))
        if parts.scheme not in ("http", "https") or not named or not sendable:
            raise ConfigError(wrong)
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host, port or (443 if tls else 80), tls, path)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def root(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"


@dataclass(frozen=True)
class Target:
    base_url: str
    model: str = "tts-1"
    voice: str | None = None
    api_key: str | None = field(default=None, repr=False)
    response_format: str = "pcm"
    stream: bool = True
    sse: bool = False
    sample_rate: int = 24_000  # of PCM, unless the server tells it
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # a null removes a field
    connect_first: bool = False  # the clock starts once the connection is open
    verify_tls: bool = True

    def __post_init__(self) -> None:
        if self.response_format not in FORMATS:
            raise ConfigError(f"no format {self.response_format!r}; there are {', '.join(FORMATS)}")
        if self.sse and not self.stream:
            raise ConfigError("--sse is a way to stream: leave --no-stream away")
        if self.api_key and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError(
                "the API key has characters that no header can carry: was it copied whole, and nothing else?"
            )

    @cached_property
    def address(self) -> Address:
        return Address.parse(self.base_url)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "input": prompt.text, "response_format": self.response_format}
        if self.voice is not None:
            body["voice"] = self.voice
        body["stream"] = self.stream  # not OpenAI's, but some servers stream only when told to
        if self.stream:
            body["stream_format"] = "sse" if self.sse else "audio"
        if prompt.reference is not None:
            clip = base64.b64encode(prompt.reference.clip.read_bytes()).decode()
            body["ref_audio"] = f"data:audio/wav;base64,{clip}"
            if prompt.reference.text:
                body["ref_text"] = prompt.reference.text
        body |= self.extra_body
        return {key: value for key, value in body.items() if value is not None}

    def request(self, prompt: Prompt) -> bytes:
        """All bytes that are sent for one prompt."""
        body = json.dumps(self.body(prompt)).encode()
        headers = {
            "Host": self.address.authority,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Accept": "text/event-stream" if self.sse else "*/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        head = f"POST {self.address.path}/v1/audio/speech HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return head.encode("latin-1") + b"\r\n" + body

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        if not self.address.tls:
            return None
        context = ssl.create_default_context()
        if not self.verify_tls:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def describe(self) -> dict[str, Any]:
        """What is stored of it with the results, never the key."""
        return {
            "base_url": self.base_url,
            "model": self.model,
            "voice": self.voice,
            "response_format": self.response_format,
            "stream": self.stream,
            "sse": self.sse,
            "extra_body": dict(self.extra_body),
            "connections": "opened before the clock starts" if self.connect_first else "a new one for each request",
        }
