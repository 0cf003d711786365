"""API keys and what each may do. Without any key everybody may do everything, and the operator is warned of that.

A key given by `--api-key` has all roles. A key file is TOML, a line for each key with its roles:

    "a-long-random-string" = ["speak"]
    "another-one" = ["speak", "voices", "metrics"]
"""

from __future__ import annotations

import hashlib
import hmac
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sonant import strict
from sonant.errors import ConfigError
from sonant.serving.options import ServeOptions
from sonant.serving.start_check import is_public

Role = Literal["speak", "voices", "metrics"]
ROLES: frozenset[Role] = frozenset(get_args(Role))
_READING = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class ApiKeys:
    roles: Mapping[str, frozenset[Role]]  # by key

    @classmethod
    def of(cls, options: ServeOptions) -> ApiKeys:
        """The keys of the options and of their key file; `ConfigError` if that cannot be read."""
        listed = {} if options.api_key_file is None else _read(options.api_key_file)
        return cls({**listed, **dict.fromkeys(options.api_keys, ROLES)})

    def __bool__(self) -> bool:
        return bool(self.roles)

    def roles_of(self, key: str) -> frozenset[Role] | None:
        """None: the key is unknown. It is compared with every key, so that the time taken tells nothing of them."""
        found = None
        for known, roles in self.roles.items():
            if hmac.compare_digest(key.encode(), known.encode()):
                found = roles
        return found


def role_for(method: str, path: str) -> Role | None:
    """The role that a key needs for a route; None: any key will do. A WebSocket's method is GET."""
    if path.startswith("/v1/audio/speech"):
        return "speak"
    if path.startswith("/v1/audio/voice_consents") or (path.startswith("/v1/audio/voices") and method not in _READING):
        return "voices"
    return "metrics" if path == "/metrics" or path.startswith("/debug/") else None


def mark(key: str) -> str:
    """Identifies a key in logs and among clients, and cannot be used as one."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def exposure(options: ServeOptions) -> Iterator[str]:
    """Warnings to the operator before the port is open, a sentence each."""
    if not options.has_keys and is_public(options.host):
        may = "use it" if options.voices_folder is None else "use it, and upload, replace and delete voices"
        yield (
            f"LISTENING ON {options.host} WITHOUT AN API KEY: everybody who can reach this machine may {may}. "
            "Set --api-key or --api-key-file, or listen on 127.0.0.1 behind a proxy that asks who is there"
        )
    if options.api_key_file is not None and _is_world_readable(options.api_key_file):
        file = options.api_key_file
        yield f"every user of this machine can read the keys in {file}; chmod 600 {file}"


def _read(file: Path) -> dict[str, frozenset[Role]]:
    try:
        listed = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"the key file {file} cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):  # The error may quote a line, which holds a key.
        raise ConfigError(f'the key file {file} is not valid TOML; write "key" = ["speak"], a line for each') from None
    if not listed:
        raise ConfigError(f"the key file {file} holds no key, which would let everybody in; add one")
    found = {}
    for number, (key, roles) in enumerate(listed.items(), 1):
        where = f"the key file {file}: key {number}"  # never the key itself
        if not key or key != key.strip():
            raise ConfigError(f"{where} is empty or has white space around it")
        named = strict.convert(tuple[Role, ...], roles, where, error=ConfigError)
        if not named:
            raise ConfigError(f"{where} has no role; give it some of {', '.join(sorted(ROLES))}")
        found[key] = frozenset(named)
    return found


def _is_world_readable(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
