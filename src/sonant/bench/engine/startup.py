"""Time from the start of a process to its first sound, by stage. Run as a module, this is that process.

The process runs twice: the first run leaves the caches (the weights' pages, compiled kernels) filled for the second,
which is the one that counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sonant.config import Quantization
from sonant.errors import ConfigError

if TYPE_CHECKING:
    from sonant.config import KVCacheType

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Stages:
    """Seconds that each stage took, in order."""

    imports: float  # the interpreter, torch and Sonant
    weights: float  # reading and placing them, and starting the device
    memory: float  # rows and cache
    kernels: float  # waiting for those not yet compiled when the weights were there
    graphs: float  # capturing them
    first_request: float  # until its first chunk

    @property
    def engine(self) -> float:
        return self.memory + self.kernels + self.graphs

    @property
    def total(self) -> float:
        return self.imports + self.weights + self.engine + self.first_request


@dataclass(frozen=True)
class Startup:
    first: Stages  # with caches as they were found
    warm: Stages


@dataclass(frozen=True)
class StartupJob:
    """What the process is to load."""

    folder: str
    device: str
    dtype: str
    codec_dtype: str
    max_rows: int
    codec: str | None = None
    kv_cache_dtype: KVCacheType | None = None
    quantize: Quantization | None = None


def measure(job: StartupJob) -> Startup:
    return Startup(_start(job), _start(job))


def _start(job: StartupJob) -> Stages:
    command = [sys.executable, "-m", "sonant.bench.engine.startup", json.dumps(asdict(job))]
    began_s = time.time()  # the only clock that two processes share on every platform
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"a fresh process made no sound in {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(f"a fresh process could not speak: {last}")
    marks: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    phases = marks["phases"]
    return Stages(
        imports=marks["imported"] - began_s,
        weights=phases["weights"] + phases.get("device", 0.0),
        memory=phases["memory"],
        kernels=phases["kernels"],
        graphs=phases["graphs"],
        first_request=marks["sound"] - marks["engine"],
    )


def _speak(job: StartupJob) -> dict[str, Any]:
    """When stages ended, and the engine's own times of its phases."""
    from sonant.bench.engine.listener import TEXT
    from sonant.config import EngineConfig
    from sonant.loading import load

    marks: dict[str, Any] = {"imported": time.time()}
    config = EngineConfig(
        max_rows=job.max_rows, codec=job.codec, kv_cache_dtype=job.kv_cache_dtype, quantize=job.quantize
    )
    with load(job.folder, device=job.device, dtype=job.dtype, codec_dtype=job.codec_dtype, config=config) as engine:
        marks["engine"], marks["phases"] = time.time(), engine.start_times.phases
        with engine.stream(TEXT, seed=0, max_frames=8) as stream:
            next(iter(stream))
            marks["sound"] = time.time()
    return marks


if __name__ == "__main__":
    print(json.dumps(_speak(StartupJob(**json.loads(sys.argv[1])))))
