"""Puts an exported voice into the package, with the sums that `sonant.load()` checks.

python -m training.ship --voice voice
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import sonant
from sonant.bundled import verify, write_sums

PLACE = Path(sonant.__file__).parent / "voices" / "english"
MOST_BYTES = 40_000_000


def ship(voice: Path, place: Path) -> int:
    """Replace what is at `place`, which `voice` itself may be → the bytes of what is there now."""
    size = sum(p.stat().st_size for p in voice.rglob("*") if p.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"{voice} has {size / 1e6:.1f} MB, over {MOST_BYTES / 1e6:.0f} MB")
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(voice, part)
        for path in part.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        write_sums(part)
        verify(part)
        put_in_place(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return size


def put_in_place(part: Path, place: Path) -> None:
    """Give a finished folder the name of another, whose place it takes."""
    if place.exists():
        shutil.rmtree(place)
    part.rename(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voice", type=Path, required=True, help="what training.export wrote")
    options = parser.parse_args()
    print(f"{PLACE}: {ship(options.voice, PLACE) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
