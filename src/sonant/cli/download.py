"""`sonant download`: fetches a published checkpoint from a hub once its licence is accepted, and checks it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from sonant.cli.model_store import store_folder
from sonant.cli.sound_file import OutputError
from sonant.errors import ConfigError
from sonant.hub.download import Part, fetch, is_whole, look
from sonant.hub.names import known_names, repository_of, suggestion
from sonant.hub.repository import PARTIAL, Hub, StoredFile
from sonant.text_table import grid

ENDPOINT_VARIABLE = "HF_ENDPOINT"  # the name that huggingface_hub uses

EXAMPLES = """
sonant download                                        list the names
sonant download NAME                                   then: sonant say "Hello." --model NAME
sonant download ORGANISATION/NAME --to folder --yes    into a folder, without asking
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?",
        help="short name, or any repository as ORGANISATION/NAME (default: list the short names)",
    )  # fmt: skip
    parser.add_argument(
        "--to", metavar="DIR", type=Path,
        help="folder for the checkpoint (default: one in ~/.cache/sonant/models, where --model NAME finds it)",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="accept the licence without being asked (default: ask)")


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        print(grid([("name", "repository"), *known_names().items()]))
        return 0
    repository = repository_of(args.name)
    if repository is None:
        raise ConfigError(
            f"there is no checkpoint called {args.name!r}{suggestion(args.name)}; `sonant download` lists the "
            "names, and ORGANISATION/NAME names any repository"
        )
    folder = args.to or store_folder(repository)
    try:
        if args.to is not None and not is_whole(folder) and not _may_become(folder):
            raise OutputError(f"{folder} is not empty; give a new or empty folder with --to")
        hub = Hub(os.environ.get(ENDPOINT_VARIABLE))
        parts = look(hub, repository)
        _ask(parts, accepted=args.yes)
        fetch(hub, parts, folder, _tell)
    except OSError as e:
        raise OutputError(f"cannot write {folder}: {e}") from e
    print(f"{folder}: {repository} is complete and checked; use it with --model {args.to or args.name}")
    return 0


def _may_become(folder: Path) -> bool:
    """Whether the folder is new or empty, or an earlier run began to fill it."""
    return not folder.exists() or not any(folder.iterdir()) or (folder / PARTIAL).is_dir()


def _ask(parts: Iterable[Part], *, accepted: bool) -> None:
    for part in parts:
        print(f"{part.repository.name}: {part.size / 1e9:.2f} GB, licence: {part.repository.licence}", file=sys.stderr)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise ConfigError("the licence must be accepted: read it, then run the same command with --yes")
    print("Do you accept the licence? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was downloaded: the licence was not accepted")


def _tell(part: Part, file: StoredFile) -> None:
    print(f"{part.repository.name} {file.path}: {file.size / 1e6:.1f} MB, checked", file=sys.stderr)
