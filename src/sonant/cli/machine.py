"""Facts about this machine that decide how Sonant runs here: for `sonant doctor`, and for bug reports."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from sonant.cli.package_version import version_of
from sonant.cores import usable_cores
from sonant.kernels.dispatch import OPS, choose
from sonant.kernels.gpu import gpu_of

PACKAGES = ("sonant", "torch", "numpy", "safetensors", "tokenizers", "soundfile", "soxr")


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_free_bytes: int
    memory_total_bytes: int
    compute_capability: str
    problem: str | None  # why a small computation on it failed


@dataclass(frozen=True)
class Kernel:
    op: str
    device: str
    implementation: str
    reason: str


@dataclass(frozen=True)
class Machine:
    python: str
    platform: str
    packages: dict[str, str | None]  # None if it is not installed
    torch_cuda: str | None  # the CUDA that torch was built for; None for a CPU build
    driver: str | None
    no_gpu_reason: str | None
    gpus: tuple[Gpu, ...]
    cpu_cores: int  # that this process may use
    torch_threads: int
    memory_free_bytes: int | None
    memory_total_bytes: int | None
    kernels: tuple[Kernel, ...]


def this_machine() -> Machine:
    free, total = _memory()
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    choices = [(device, choose(op, device, gpu=gpu_of(torch.device(device)))) for device in devices for op in OPS]
    return Machine(
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: version_of(name) for name in PACKAGES},
        torch_cuda=torch.version.cuda,
        driver=_driver(),
        no_gpu_reason=_no_gpu_reason(),
        gpus=tuple(_gpu(i) for i in range(torch.cuda.device_count())) if len(devices) > 1 else (),
        cpu_cores=usable_cores(),
        torch_threads=torch.get_num_threads(),
        memory_free_bytes=free,
        memory_total_bytes=total,
        kernels=tuple(Kernel(c.op, device, c.implementation, c.reason) for device, c in choices),
    )


def problems(machine: Machine) -> list[str]:
    """What would keep Sonant from running; empty when nothing would."""
    found = [f"{name} is not installed" for name, v in machine.packages.items() if v is None]
    found += [f"GPU {i} ({g.name}) fails: {g.problem}" for i, g in enumerate(machine.gpus) if g.problem]
    if machine.driver and machine.torch_cuda and not machine.gpus:
        found.append(f"there is an NVIDIA driver, but torch cannot use it: {machine.no_gpu_reason}")
    return found


def _gpu(index: int) -> Gpu:
    p = torch.cuda.get_device_properties(index)
    free, total, problem = 0, p.total_memory, None
    try:
        free, total = torch.cuda.mem_get_info(index)
        x = torch.ones(64, 64, device=f"cuda:{index}")
        if float((x @ x).sum()) != 64.0**3:
            problem = "a matrix product gave a wrong result"
    except RuntimeError as e:  # no code for this GPU's architecture, or no memory left
        problem = str(e).splitlines()[0]
    return Gpu(p.name, free, total, f"{p.major}.{p.minor}", problem)


def _no_gpu_reason() -> str | None:
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return "this build of torch is for the CPU only"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as e:
        return str(e).splitlines()[0]
    return "torch finds no GPU"


def _driver() -> str | None:
    """The NVIDIA driver's version. torch does not report it; nvidia-smi comes with every driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.splitlines()[0].strip() if answer.strip() else None


def _memory() -> tuple[int | None, int | None]:
    """Available and total bytes of host memory, if the system reports them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None, None
    sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith("kB")}
    return sizes.get("MemAvailable"), sizes.get("MemTotal")
