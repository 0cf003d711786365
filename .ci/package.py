"""Builds wheel and sdist as for a release, and checks that they hold what no import would miss: voice, page, tables.

The wheel is then installed by itself, without dependencies, into a fresh environment of each of `PYTHONS` that is on
this machine, and its command is asked for its version.
Needs `build`, which `make package` installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sonant"
# Folders whose files, which are no Python, must all be packaged, besides the single FILES.
DATA = (
    *("voices", "serving/page/static", "kernels/tables", "kernels/cuda/source", "bench/prompt_sets"),
    "bench/kernels/accepted",
)
FILES = ("py.typed", "profiling/page.html")
PYTHONS = ("python3.11", "python3.12", "python3.13")
FOR_SOURCES = ("README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "tests/conftest.py")


def wanted() -> set[str]:
    """Paths in the package of the data files that git tracks: files that somebody left there are not to be shipped."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(PACKAGE), "ls-files", *DATA, *FILES],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    missing = [name for name in (*DATA, *FILES) if not any(f"{path}/".startswith(f"{name}/") for path in listed)]
    if missing:
        sys.exit(f"the package has no {', '.join(missing)} any more: mend DATA and FILES in {__file__}")
    return set(listed)


def build(folder: Path) -> tuple[Path, Path]:
    """Build both, the wheel from the sdist, so that both are checked to be complete."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    lacking = [name for name in sorted(wanted()) if f"sonant/{name}" not in in_wheel]
    lacking += [name for name in FOR_SOURCES if name not in in_sdist]
    if lacking:
        sys.exit(f"not packaged: {', '.join(lacking)}")


def interpreters() -> dict[str, Path]:
    """Interpreters by version: this one, and those of `PYTHONS` that run here; also pyenv's, active or not."""
    found = {}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = [path for name in PYTHONS for path in versions.glob(f"{name.removeprefix('python')}.*/bin/python")]
    for name in (sys.executable, *PYTHONS, *kept):
        show = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
        try:
            done = subprocess.run([name, "-c", show], capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0:  # pyenv has names for inactive versions too, which fail.
            version, path = done.stdout.split()
            found.setdefault(version, Path(path))
    return found


def check_install(python: Path, wheel: Path, folder: Path) -> str:
    subprocess.run([python, "-m", "venv", folder], check=True)
    own = folder / "bin" / "python"
    subprocess.run([own, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    done = subprocess.run([folder / "bin" / "sonant", "--version"], capture_output=True, text=True)
    return done.stdout.strip() or f"nothing, but: {done.stderr.strip()}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = build(Path(folder) / "dist")
        check_contents(wheel, sdist)
        version = wheel.name.split("-")[1]
        pythons = interpreters()
        for name, python in pythons.items():
            shown = check_install(python, wheel, Path(folder) / f"venv-{name}")
            if shown != f"sonant {version}":
                sys.exit(f"asked for version {version}, the command installed on Python {name} says {shown}")
        on = ", ".join(sorted(pythons))
        print(f"{wheel.name} and {sdist.name}: complete; `sonant {version}` from the wheel alone, on Python {on}")


if __name__ == "__main__":
    main()
