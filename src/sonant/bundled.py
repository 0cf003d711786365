"""The voice inside the package: where it lies, and a check that it is the one that was shipped."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from sonant.errors import CheckpointError

SUMS = "SHA256SUMS"  # a line for each file, as sha256sum writes it
_VOICE = ("voices", "english")
_CHUNK = 1 << 20


def bundled_voice() -> Path | None:
    """The voice's folder, in which every file has been checked; None: this build has no voice."""
    folder = Path(str(resources.files("sonant").joinpath(*_VOICE)))
    if not (folder / SUMS).is_file():
        return None
    verify(folder)
    return folder


def verify(folder: Path) -> None:
    for line in (folder / SUMS).read_text(encoding="utf-8").splitlines():
        wanted, _, name = line.partition("  ")
        try:
            found = digest(folder / name)
        except OSError as e:
            raise CheckpointError(f"the built-in voice lacks {name} ({e}); install sonant again") from e
        if found != wanted:
            raise CheckpointError(f"the built-in voice's {name} is damaged; install sonant again")


def write_sums(folder: Path) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != SUMS)
    lines = [f"{digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
