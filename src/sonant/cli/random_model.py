"""`sonant random-model`: a checkpoint of random weights, to try the program without fetching a model."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sonant.cli.sound_file import OutputError
from sonant.errors import ConfigError
from sonant.loading import pick_device
from sonant.models.registry import family_module, family_names

EXAMPLES = """
sonant random-model model
sonant random-model base --kind base
sonant random-model big --size 1.7b --device cuda
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder to write; created if it does not exist")
    families = {name: family_module(name, "synthetic") for name in family_names()}
    first = next(iter(families))
    parser.add_argument("--family", choices=list(families), default=first, help=f"model family (default: {first})")
    kinds = {name: family.KINDS for name, family in families.items()}
    sizes = {name: family.SIZES for name, family in families.items()}
    parser.add_argument(
        "--kind", choices=_all_of(kinds),
        help=f"fixed voices, cloning, or voices described in words (default: {_firsts_of(kinds)})",
    )  # fmt: skip
    parser.add_argument(
        "--size", choices=_all_of(sizes),
        help=f"numbers are published sizes, for timing; the others are for trials (default: {_firsts_of(sizes)})",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer-from", metavar="DIR", type=Path,
        help="folder with the text tokenizer's files, for its vocabulary (default: a vocabulary of single bytes)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="device to draw numbers on: cpu, cuda … (default: cpu)")
    parser.add_argument("--force", action="store_true", help="write even if DIR is not empty (default: off)")


def _all_of(choices: Mapping[str, tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(choice for family in choices.values() for choice in family))


def _firsts_of(choices: Mapping[str, tuple[str, ...]]) -> str:
    """The default choice, with the family's name if not all families have the same."""
    firsts = {family: those[0] for family, those in choices.items()}
    if len(set(firsts.values())) == 1:
        return next(iter(firsts.values()))
    return ", ".join(f"{first} for {family}" for family, first in firsts.items())


def run(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    synthetic = family_module(args.family, "synthetic")
    kind = _chosen(args.kind, "kind", synthetic.KINDS, args.family)
    size = _chosen(args.size, "size", synthetic.SIZES, args.family)
    device = pick_device(args.device)
    try:
        if folder.is_dir() and any(folder.iterdir()) and not args.force:
            raise OutputError(f"{folder} is not empty; --force overwrites files of the same names")
        folder.mkdir(parents=True, exist_ok=True)
        # Written beside its place and moved there: an interrupted run leaves nothing that looks like a model.
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.resolve().parent) as staging:
            made = Path(staging)
            synthetic.write_checkpoint(made, kind=kind, size=size, device=device, tokenizer_from=args.tokenizer_from)
            size_bytes = _move_files(made, folder)
    except OSError as e:
        raise OutputError(f"cannot write {folder}: {e}") from e
    print(f"{folder}: a {size} {kind} model of random weights, {size_bytes / 1e6:.0f} MB; it babbles")
    return 0


def _chosen(given: str | None, what: str, choices: tuple[str, ...], family: str) -> str:
    """The choice that was given, which not every family has; by default the family's first."""
    if given is not None and given not in choices:
        raise ConfigError(f"{family} has no {what} {given!r}: choose --{what} {', '.join(choices)}")
    return given or choices[0]


def _move_files(source: Path, target: Path) -> int:
    """Move every file; return their size in bytes. config.json comes last: with it the folder becomes a checkpoint."""
    files = [p for p in source.rglob("*") if p.is_file()]
    files.sort(key=lambda p: p.relative_to(source) == Path("config.json"))
    total = 0
    for path in files:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        total += path.stat().st_size
        os.replace(path, place)
    return total
