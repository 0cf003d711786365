"""Compares kernels with a table of accepted figures, so that none becomes slower unnoticed.

A figure is the share of the floor that a kernel reaches, so it is relative to the bandwidth and the product rate that
the same run has measured: a GPU that is throttled or shared slows both. A kernel that seems slower is measured again,
with its floor, before it counts, and the best of its measurements stands: noise only ever makes a kernel look slower.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonant.bench.kernels.case import Case
from sonant.bench.kernels.versus_torch import KernelReport, KernelTime
from sonant.config import Quantization
from sonant.errors import ConfigError
from sonant.kernels.tuning import file_name

FORMAT = 1
TOLERANCE = 0.05  # medians of seven batches of replays differ by 1 to 3 % between runs
REPEATS = 3


def key(timed: KernelTime | Case) -> str:
    return f"{timed.op} | {timed.where} | {timed.rows}"


@dataclass(frozen=True)
class Slower:
    key: str
    accepted: float  # shares of the floor
    measured: float
    us: float

    def __str__(self) -> str:
        more = 100 * (self.accepted / self.measured - 1)
        shares = f"{100 * self.measured:.1f} % of its floor, {100 * self.accepted:.1f} % were accepted"
        return f"{self.key}: {more:.1f} % slower than accepted ({self.us:.2f} µs: {shares})"


@dataclass(frozen=True)
class Verdict:
    slower: tuple[Slower, ...]
    unknown: tuple[str, ...]  # measured, and not in the table
    missing: tuple[str, ...]  # in the table, and not measured
    compared: int
    times: tuple[KernelTime, ...]  # the best of each kernel

    @property
    def passed(self) -> bool:
        return not self.slower


def judge(
    times: Sequence[KernelTime],
    accepted: Mapping[str, float],
    measure_again: Callable[[Collection[str]], Iterable[KernelTime]],
    tolerance: float = TOLERANCE,
    repeats: int = REPEATS,
) -> Verdict:
    best = {key(timed): timed for timed in times}
    for _ in range(repeats):
        slow = {found.key for found in _slower(best, accepted, tolerance)}
        if not slow:
            break
        for timed in measure_again(slow):
            if timed.share > best[key(timed)].share:
                best[key(timed)] = timed
    return Verdict(
        tuple(_slower(best, accepted, tolerance)),
        tuple(name for name in best if name not in accepted),
        tuple(name for name in accepted if name not in best),
        sum(name in accepted for name in best),
        tuple(best.values()),
    )


def _slower(times: Mapping[str, KernelTime], accepted: Mapping[str, float], tolerance: float) -> Iterable[Slower]:
    for name, timed in times.items():
        if name in accepted and timed.share < accepted[name] * (1 - tolerance):
            yield Slower(name, accepted[name], timed.share, timed.picked_us)


def shipped(gpu: str, quantize: Quantization | None = None) -> Path:
    """The path of the figures that ship with Sonant for this GPU, if there are any."""
    name = file_name(gpu) if quantize is None else f"{file_name(gpu)}-{quantize}"
    return Path(__file__).with_name("accepted") / f"{name}.json"


def read(path: Path, device: str, dtype: str) -> dict[str, float]:
    """Read a table's figures. Raise `ConfigError` for another GPU's or type's, which tell nothing about this one."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ConfigError(f"{path} has format {data['format']}, not {FORMAT}: accept its figures anew")
        figures = {str(name): float(share) for name, share in data["share_of_floor"].items()}
        told = str(data["device"]), str(data["dtype"])
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; --accept writes it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is no table of accepted figures: {error!r}") from None
    if any(not share > 0 for share in figures.values()):
        raise ConfigError(f"{path} has a share of the floor that is not over 0")
    if told != (device, dtype):
        raise ConfigError(f"{path} is of {told[0]} in {told[1]}, and this is {device} in {dtype}")
    return figures


def can_write(path: Path) -> bool:
    """Whether `write` will work, which it does not in a read-only install."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def write(path: Path, report: KernelReport, times: Iterable[KernelTime], known: Mapping[str, float]) -> int:
    """Write these figures, and those of `known` that were not measured, atomically → how many there are."""
    figures = dict(known) | {key(timed): round(timed.share, 4) for timed in times}
    data = {
        "format": FORMAT, "device": report.device, "dtype": report.dtype, "torch": report.torch,
        "made_at": report.made_at, "share_of_floor": dict(sorted(figures.items())),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False)
    Path(file.name).replace(path)
    return len(figures)


def told(verdict: Verdict, path: Path, tolerance: float) -> str:
    lines = [str(found) for found in sorted(verdict.slower, key=lambda f: f.measured / f.accepted)]
    if verdict.unknown:
        lines.append(f"not in {path} yet: {', '.join(verdict.unknown)}; --accept adds them")
    if verdict.missing:
        lines.append(f"{len(verdict.missing)} figures of {path} were not measured in this run")
    result = f"{len(verdict.slower)} slower" if verdict.slower else "none slower"
    lines.append(f"{verdict.compared} kernels against {path}, {result} by more than {100 * tolerance:g} %")
    return "\n".join(lines)
