"""Memory of a server's processes over time: which of them grows, how fast, and whether all together stay flat."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

_LEAST_SAMPLES = 6
_SHARE = 5  # a fifth of the samples at each end is compared, so that a moment's scratch memory is no growth


class MemoryRecord:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._samples: dict[str, list[tuple[float, float, float]]] = defaultdict(list)

    def sample(self, at_s: float) -> None:
        for name, (resident, anonymous) in self._look().items():
            self._samples[name].append((at_s, resident, anonymous))

    def total_mib(self) -> float:
        return sum(resident for resident, _ in self._look().values())

    def now(self) -> str:
        looked = self._look()
        each = "  ".join(f"{name} {resident:.1f} ({anonymous:.1f})" for name, (resident, anonymous) in looked.items())
        return f"{sum(resident for resident, _ in looked.values()):.1f} MiB: {each}"

    def show(self) -> float | None:
        """Print a line for each process and one for all → the share by which all have grown; None: too few samples."""
        print(f"{'MiB':<16}{'at first':>10}{'at last':>10}{'':>9}{'MiB/h':>9}   own pages: first, last, MiB/h")
        growth = None
        for name, samples in [*self._samples.items(), ("all", self._together())]:
            at_s, resident, anonymous = np.array(samples).reshape(-1, 3).T
            if len(at_s) < _LEAST_SAMPLES:
                print(f"{name:<16} {len(at_s)} samples: it was there too short a time")
                continue
            (first, last, slope), own = _trend(at_s, resident), _trend(at_s, anonymous)
            growth = last / first - 1
            shown = f"{name:<16}{first:10.1f}{last:10.1f}{100 * growth:+8.2f}%{slope:9.1f}"
            print(f"{shown}   {own[0]:.1f}, {own[1]:.1f}, {own[2]:+.1f}")
        return growth if len(self._together()) >= _LEAST_SAMPLES else None

    def _together(self) -> list[tuple[float, float, float]]:
        at = defaultdict(lambda: np.zeros(2))
        for samples in self._samples.values():
            for at_s, *values in samples:
                at[at_s] += values
        return [(at_s, *values) for at_s, values in sorted(at.items())]

    def _look(self) -> dict[str, tuple[float, float]]:
        """Resident and anonymous MiB of each process: the launcher and its children."""
        found: dict[str, tuple[float, float]] = {}
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in [str(self.pid), *children]:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text()
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except (OSError, ProcessLookupError):
                continue  # it has just ended
            kind = re.search(r"processes\.(engine|front_end)_process", command)
            name = "launcher" if pid == str(self.pid) else kind[1] if kind else "other"
            found[f"{name} {pid}"] = (_mib("Rss", rollup), _mib("Anonymous", rollup))
        return found


def _mib(what: str, rollup: str) -> float:
    line = re.search(rf"^{what}:\s+(\d+) kB$", rollup, re.MULTILINE)
    assert line is not None, rollup
    return int(line[1]) / 1024


def _trend(at_s: np.ndarray, mib: np.ndarray) -> tuple[float, float, float]:
    """Medians of the first and the last fifth, and the slope per hour of a line through all."""
    part = max(3, len(mib) // _SHARE)
    slope = float(np.polyfit(at_s / 3600, mib, 1)[0])
    return float(np.median(mib[:part])), float(np.median(mib[-part:])), slope
