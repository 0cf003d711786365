"""Our attention under NVIDIA's compute-sanitizer on a GPU: memcheck, racecheck and synccheck at the same time.

    PYTHONPATH=src:tests python3 tests/gpu_sanitizer.py                  # at most a minute and a half
    PYTHONPATH=src:tests python3 tests/gpu_sanitizer.py --tools memcheck --limit 80

Each tool runs some shapes of `gpu_attention.py` in a process of its own, without torch's caching allocator, so that
each tensor ends where its memory does. Only our kernels are checked, since torch's would take minutes. A tool that does
not finish in time is killed, and what it had found by then is printed. The exit code is 1 if anything was found or
broke.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

PLACES = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
# Seeds of gpu_attention.py (from:to:step); multiples of eight have long rows, which several blocks share.
SHAPES = {
    "memcheck": "8:64:1",
    "synccheck": "8:40:1",
    "racecheck": "8:25:1",  # slower: it records every access to shared memory
}
SHOWN = 40  # lines of what a tool found


def run(tool: str, sanitizer: str, limit_s: float) -> bool:
    """Run a tool → whether it found nothing."""
    command = [
        sanitizer, "--tool", tool, "--kernel-name", "kns=paged_", "--error-exitcode", "9",
        "--print-limit", "8", sys.executable, "-u", str(Path(__file__).with_name("gpu_attention.py")),
        "--phase", "shapes", "--seeds", SHAPES[tool],
    ]  # fmt: skip
    began = time.monotonic()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        output, ended = child.communicate(timeout=limit_s)[0], ""
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # the sanitizer and its child
        output, ended = child.communicate()[0], f"OUT OF TIME after {limit_s:g} s, "
    lines = output.splitlines()
    shapes = sum(line.startswith("@at ") for line in lines)
    wrong = [line for line in lines if line.startswith("@wrong ")]
    found = [line for line in lines if line.startswith("=========")]
    clean = child.returncode == 0 and not wrong and not any(re.search(r"SUMMARY: [1-9]", line) for line in found)
    summary = next((line.strip("= ") for line in reversed(found) if "SUMMARY" in line), "no summary")
    told = f"{summary}, {shapes} shapes begun, {len(wrong)} wrong, {time.monotonic() - began:.0f} s"
    print(f"{tool}: {ended}exit code {child.returncode}, {told}", flush=True)
    if not clean:
        print("\n".join([*wrong, *found[:SHOWN], *lines[-8:]]), flush=True)
    return clean and not ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(SHAPES))
    parser.add_argument("--limit", type=float, default=85.0, metavar="S", help="of each tool")
    args = parser.parse_args()
    sanitizer = next((path for name in PLACES if (path := shutil.which(name))), None)
    if sanitizer is None:
        sys.exit(f"there is no compute-sanitizer: not on the PATH, nor {PLACES[1]}")
    import gpu_attention

    gpu_attention.build()  # once for all tools, and under none of them
    tools = args.tools.split(",")
    with ThreadPoolExecutor(len(tools)) as pool:
        results = list(pool.map(partial(run, sanitizer=sanitizer, limit_s=args.limit), tools))
    print(f"{sum(results)} of {len(tools)} tools found nothing")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
