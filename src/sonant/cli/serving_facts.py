"""What a server would find on this machine, as it is set up now: for `sonant doctor`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from sonant.cli.package_version import version_of
from sonant.cli.serve import OWNERS
from sonant.cli.settings import CONFIG_VARIABLE, gather, settings_of
from sonant.serving.options import ServeOptions
from sonant.serving.start_check import folder_problem, is_public, port_problem

PACKAGES = ("fastapi", "uvicorn", "httptools", "python-multipart", "prometheus-client", "websockets", "av")
# Each listener takes one, and a proxy in front as many again; the rest of the process needs about a hundred.
FEW_FILES = 4096


@dataclass(frozen=True)
class ServingFacts:
    packages: dict[str, str | None]  # of sonant[serve]; None if it is not installed
    host: str
    port: int
    port_problem: str | None
    public: bool  # other machines can reach it
    has_keys: bool  # clients must send an API key
    voices_folder: str | None
    voices_problem: str | None
    file_limit: int | None  # on open files and connections; None: not known

    @property
    def problems(self) -> list[str]:
        """What is set up and would not work. A port in use is no problem: the server may be running."""
        return [self.voices_problem] if self.voices_problem else []


def serving_facts() -> ServingFacts:
    """For the options that the environment and the config file set; raises `ConfigError` if they cannot be read."""
    name = os.environ.get(CONFIG_VARIABLE)
    file = Path(name) if name else None
    found = gather(settings_of(*OWNERS.values()), None, os.environ, file)
    options = ServeOptions(**found[ServeOptions])
    folder = options.voices_folder
    return ServingFacts(
        packages={name: version_of(name) for name in PACKAGES},
        host=options.host,
        port=options.port,
        port_problem=port_problem(options.host, options.port),
        public=is_public(options.host),
        has_keys=options.has_keys,
        voices_folder=None if folder is None else str(folder),
        voices_problem=None if folder is None else folder_problem(folder),
        file_limit=_file_limit(),
    )


def serving_rows(facts: ServingFacts, cpu_cores: int) -> list[tuple[str, str]]:
    lacking = [name for name, found in facts.packages.items() if found is None]
    there = ", ".join(f"{name} {found}" for name, found in facts.packages.items() if found)
    packages = f"lacks {', '.join(lacking)}; install with: pip install 'sonant[serve]'" if lacking else there
    reach = "reached from other machines" if facts.public else "reached from this machine only"
    keys = "with API keys" if facts.has_keys else "no API key"
    if facts.public and not facts.has_keys:
        keys += ": ANYBODY WHO REACHES IT MAY USE IT; set SONANT_API_KEYS"
    limit = "not known" if facts.file_limit is None else f"{facts.file_limit:,} open files"
    if facts.file_limit is not None and facts.file_limit < FEW_FILES:
        limit += f", too few for many listeners; raise with: ulimit -n {FEW_FILES}"
    return [
        ("serve", packages),
        ("", f"{facts.port_problem or f'{facts.host}:{facts.port} is free'}; {reach}, {keys}"),
        ("", f"voices: {facts.voices_problem or _voices(facts.voices_folder)}"),
        ("", f"{cpu_cores} cores, {limit}"),
    ]


def _voices(folder: str | None) -> str:
    return "no folder is set (SONANT_VOICES_FOLDER), uploads are off" if folder is None else f"{folder}, can be written"


def _file_limit() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft
