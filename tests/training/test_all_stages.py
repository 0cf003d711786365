"""`training/all_stages.sh` runs its stages in order, each on what this run has made, and says which one failed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "training" / "all_stages.sh"
# Notes each stage with the codec's state that it is given, and leaves what the others wait for.
STAND_IN = """\
#!/usr/bin/env bash
shift
module=$1 && shift
echo "$module $*" >> "$NOTES"
while [ $# -gt 0 ]; do
    [ "$1" = --out ] && out=$2
    [ "$1" = --checkpoint ] && given=$2
    shift
done
[ "$FAILS" != "$module" ] || exit 1
case $module in
training.codec.train) sleep 0.2 && rm -rf "$out/frozen" && mkdir -p "$out/frozen" && touch "$out/frozen/new" ;;
training.codec.export) case "$given" in */frozen) [ -e "$given/new" ] ;; esac ;;
training.encode) mkdir -p "$out" ;;
esac
"""


def run(
    tmp_path: Path, codec_minutes: int = 1, fails: str = "", **more: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run all stages with a stand-in for Python → what came of it, and the stages that were begun."""
    stand_in, notes = tmp_path / "bin" / "python3", tmp_path / "notes"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{stand_in.parent}:{os.environ['PATH']}", "NOTES": str(notes), "FAILS": fails}
    folders = [str(tmp_path / name) for name in ("teachers", "work", "out")]
    done = subprocess.run(
        [str(SCRIPT), *folders, "1", str(codec_minutes), "1", "1"],
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done, notes.read_text()


def test_codes_are_made_with_the_codec_of_this_run_and_not_of_an_earlier_one_in_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "out" / "codec" / "frozen").mkdir(parents=True)
    os.utime(tmp_path / "out" / "codec" / "frozen", (1, 1))
    done, notes = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert notes.splitlines()[-1].startswith("training.export ")


def test_a_talker_that_fails_beside_the_corpus_ends_the_run_and_is_named(tmp_path: Path) -> None:
    codec = {"CODEC": str(tmp_path / "codec"), "KEPT_CODES": str(tmp_path / "kept")}
    done, notes = run(tmp_path, codec_minutes=0, fails="training.talker.train", **codec)
    assert done.returncode != 0 and "talker FAILED" in done.stderr
    assert "training.guess" not in notes


def test_a_codec_that_fails_is_named_and_no_codes_are_made(tmp_path: Path) -> None:
    done, notes = run(tmp_path, fails="training.codec.train")
    assert done.returncode != 0 and "codec FAILED" in done.stderr
    assert "training.encode" not in notes


def test_codes_of_an_earlier_run_are_not_taken_for_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "work" / "more").mkdir(parents=True)
    (tmp_path / "work" / "more" / "codes-00.npz").touch()
    codec = {"CODEC": str(tmp_path / "codec"), "KEPT_CODES": str(tmp_path / "kept")}
    done, _ = run(tmp_path, codec_minutes=0, **codec)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "work" / "more").iterdir()) == []
