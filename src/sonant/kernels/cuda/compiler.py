"""Compiles CUDA sources with nvcc, once, into a cache on disk whose files are named by all that went into them.

A cubin is looked for beside the sources first, where a wheel may ship it (`python -m sonant.kernels.cuda.compiler 90
FOLDER` builds all of them), then in the user's cache. nvcc's output goes there, under another name until it is whole:
another process finds the old state or the new one, and two can build the same program at once. Failures are recorded,
so that not every process tries again; with another nvcc, or after an hour, the program is tried again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonant.kernels.gpu import Gpu

SOURCES = Path(__file__).with_name("source")
SHIPPED = Path(__file__).with_name("prebuilt")
_HOPPER = (9, 0)
_FLAGS = ("-cubin", "-std=c++17", "-O3")
_TIMEOUT_S = 120.0
_RETRY_S = 3600.0
_SAID = 2000  # characters of a compiler's messages that are kept
_STRANGE = "backslashreplace"  # for undecodable bytes: messages are in the machine's own language, and name files


class BuildError(RuntimeError):
    """There is no machine code; the message says why."""


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str  # its last line of --version, which tells builds apart


@dataclass(frozen=True)
class Program:
    """A source with its constants: what one cubin is made of."""

    source: str
    defines: Mapping[str, int] = field(hash=False)
    features: str = ""  # "a": with what only this very architecture has

    def __hash__(self) -> int:
        return hash((self.source, *self.defines.items()))

    def file_name(self, arch: int) -> str:
        """The cubin's name, from all that decides what it does: sources, constants and architecture."""
        return f"{self.source.removesuffix('.cu')}-sm{arch}-{_digest(self, arch)}.cubin"


@cache
def _digest(program: Program, arch: int) -> str:
    facts = (_FLAGS, f"{arch}{program.features}", program.source, sorted(program.defines.items()))
    digest = sha256(repr(facts).encode())
    for path in (SOURCES / program.source, *sorted(SOURCES.glob("*.cuh"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def cache_folder() -> Path:
    # like tuning.user_path, which says why the environment is read here
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sonant" / "cuda"


def find_compiler() -> Compiler | None:
    """CUDA_HOME's or CUDA_PATH's nvcc, else the one on the PATH, else where NVIDIA's packages put it."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [*(Path(home) / "bin" / "nvcc" for home in homes if home), Path("/usr/local/cuda/bin/nvcc")]
    on_path = shutil.which("nvcc")
    for path in [*places[:-1], *([Path(on_path)] if on_path else []), places[-1]]:
        if os.access(path, os.X_OK) and (version := _version(str(path))):
            return Compiler(str(path), version)
    return None


@cache
def _version(path: str) -> str:
    """The last line of --version; empty if it does not run."""
    command = [path, "--version"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, errors=_STRANGE, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.strip().splitlines()[-1] if told.strip() else ""


def find(program: Program, arch: int) -> Path | None:
    """The program's cubin; None: it has not been built yet, or is not readable."""
    name = program.file_name(arch)
    return next((path for path in (SHIPPED / name, cache_folder() / name) if os.access(path, os.R_OK)), None)


def refused(program: Program, arch: int) -> str | None:
    """Why this nvcc failed to compile it when last tried; None: it was not tried, or is worth another try."""
    compiler = find_compiler()
    return None if compiler is None else _noted(_note_path(program, arch), compiler)


def obstacle_to(programs: Iterable[Program], gpu: Gpu, *, on_later: bool = True) -> str | None:
    """Why programs for Hopper do not run on this GPU; None: all are compiled, or can be. Not `on_later`: they use
    wgmma, which no newer GPU has."""
    if gpu.capability < _HOPPER or (gpu.capability > _HOPPER and not on_later):
        return f"it needs compute capability 9.0, and {gpu.name} has {gpu.capability[0]}.{gpu.capability[1]}"
    arch = gpu.arch
    missing = [program for program in programs if find(program, arch) is None]
    if missing and find_compiler() is None:
        return "there is no nvcc to compile it (on the PATH, in CUDA_HOME or in /usr/local/cuda), nor is it compiled"
    reasons = (refused(program, arch) for program in missing)
    return next((" ".join(reason.split()) for reason in reasons if reason), None)


def _note_path(program: Program, arch: int) -> Path:
    return (cache_folder() / program.file_name(arch)).with_suffix(".refused")


def build(program: Program, arch: int, *, timeout_s: float = _TIMEOUT_S) -> Path:
    """Return the cubin, compiled if necessary; raise BuildError if it cannot be."""
    if (found := find(program, arch)) is not None:
        return found
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no nvcc; install NVIDIA's compiler, or name its folder in CUDA_HOME")
    target = cache_folder() / program.file_name(arch)
    note = _note_path(program, arch)
    if (reason := _noted(note, compiler)) is not None:
        raise BuildError(reason)
    try:
        compile_to(target, program, arch, compiler, timeout_s=timeout_s)
    except BuildError as error:
        _note(note, compiler, str(error))
        raise
    return target


def compile_to(target: Path, program: Program, arch: int, compiler: Compiler, *, timeout_s: float = _TIMEOUT_S) -> None:
    """Compile into `target`, whole or not at all."""
    defines = [f"-D{name}={value}" for name, value in program.defines.items()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
            made = Path(folder).absolute() / "made.cubin"  # nvcc runs in another folder than we do
            command = [compiler.path, *_FLAGS, f"-arch=sm_{arch}{program.features}", *defines, "-o", str(made)]
            done = subprocess.run(
                [*command, str(SOURCES / program.source)], capture_output=True, text=True, errors=_STRANGE,
                timeout=timeout_s, cwd=folder,
            )  # fmt: skip
            if done.returncode != 0 or not made.is_file() or not made.stat().st_size:
                said = (done.stderr + done.stdout).strip()[-_SAID:] or "it said nothing"
                raise BuildError(f"{compiler.path} failed at {program.source} with {done.returncode}: {said}")
            made.replace(target)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{compiler.path} took more than {timeout_s:g} s for {program.source}") from None
    except OSError as error:
        raise BuildError(f"{program.source} cannot be compiled into {target.parent}: {error}") from None


def _noted(path: Path, compiler: Compiler) -> str | None:
    try:
        version, _, reason = path.read_text(encoding="utf-8").partition("\n")
        old = time.time() - path.stat().st_mtime > _RETRY_S
    except (OSError, UnicodeDecodeError):
        return None
    return reason if version == compiler.version and not old else None


def _note(path: Path, compiler: Compiler, reason: str) -> None:
    """Record why nvcc failed. If even that cannot be written, the next process finds out for itself."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(f"{compiler.version}\n{reason}")
        Path(file.name).replace(path)
    except OSError:
        return


def _every_program() -> Iterator[Program]:
    from sonant.kernels.cuda import attention, conv, frame_pass, int8_unit, paged_pass, stack, unit

    yield from attention.programs()
    yield from conv.programs()
    yield from frame_pass.programs()
    yield from int8_unit.programs()
    yield from paged_pass.programs()
    yield from stack.programs()
    yield from unit.programs()


def main() -> int:
    """Build everything for one architecture into a folder: beside the sources, for a wheel that needs no nvcc."""
    arch, folder = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else SHIPPED
    compiler = find_compiler()
    if compiler is None:
        sys.exit("there is no nvcc")
    for program in _every_program():
        compile_to(folder / program.file_name(arch), program, arch, compiler)
        print(folder / program.file_name(arch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
