"""Downloads a published checkpoint: lists the files that it needs, fetches them, then notes that all are there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sonant.errors import CheckpointError
from sonant.hub.hub_error import HubError
from sonant.hub.repository import PARTIAL, Hub, Repository, StoredFile
from sonant.hub.selection import select
from sonant.models.registry import hub_module

NOTE = "sonant-download.json"  # written last: a folder that has it is complete


@dataclass(frozen=True)
class Part:
    """The files of one repository, and the subfolder that they go to."""

    repository: Repository
    files: tuple[StoredFile, ...]
    into: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


OnFile = Callable[[Part, StoredFile], None]


def look(hub: Hub, name: str) -> tuple[Part, ...]:
    """All that loading the checkpoint needs. Of its files only config.json is fetched for this, to find its family."""
    repository = hub.look(name)
    config = [file for file in repository.files if file.path == "config.json"]
    if not config:
        raise HubError(f"{name} holds no config.json, so it is not a checkpoint that Sonant can load")
    with tempfile.TemporaryDirectory() as folder:
        hub.fetch(repository, config[0], Path(folder))
        try:
            family = hub_module(Path(folder))
        except CheckpointError as e:
            raise HubError(f"{name} is not a checkpoint that Sonant can load: {str(e).replace(folder, name)}") from e
    parts = [_part(repository, family.FILES, "")]
    parts += [_part(hub.look(beside.repository), beside.files, beside.into) for beside in family.BESIDE]
    return tuple(parts)


def fetch(hub: Hub, parts: Iterable[Part], folder: Path, on_file: OnFile) -> None:
    """Fetch all files into `folder`, calling `on_file` for each once it is there and checked. The main part's
    config.json comes last, so that an incomplete checkpoint is not taken for one. While files of a newer revision
    replace older ones the note is missing, for the same reason."""
    parts = tuple(parts)
    left = sum(f.bytes_left(folder / p.into) for p in parts for f in p.files)
    (folder / PARTIAL).mkdir(parents=True, exist_ok=True)  # by this a later run recognizes the folder as its own
    free = shutil.disk_usage(folder).free
    if left > free:
        raise HubError(f"{folder} needs room for {left / 1e9:.1f} GB more, and only {free / 1e9:.1f} GB are free there")
    for part in reversed(parts):
        for file in part.files:
            if not file.is_at(folder / part.into / file.path):
                (folder / NOTE).unlink(missing_ok=True)
                hub.fetch(part.repository, file, folder / part.into)
            on_file(part, file)
    note = {p.repository.name: {"revision": p.repository.revision, "files": [f.path for f in p.files]} for p in parts}
    for part in parts:
        shutil.rmtree(folder / part.into / PARTIAL, ignore_errors=True)
    (folder / NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


def is_whole(folder: Path) -> bool:
    return (folder / NOTE).is_file() and (folder / "config.json").is_file()


def _part(repository: Repository, patterns: Iterable[str], into: str) -> Part:
    chosen = select((file.path for file in repository.files), patterns)
    if not any(path.endswith((".safetensors", ".pth")) for path in chosen):
        raise HubError(f"{repository.name} holds no weights that Sonant reads: no model.safetensors, no shards of one")
    by_path = {file.path: file for file in repository.files}
    return Part(repository, tuple(by_path[path] for path in chosen), into)
