"""On a GPU: the built-in voice says 200 sentences that are in no corpus, in bfloat16 and with eight bits, for judges.

    python tests/gpu_fp8_voice.py --out OUT [--variants bf16,bf16-reseeded,fp8,fp8-few,fp8-cache]

Not a test that pytest collects. Each variant becomes one tar of 9 MB, of FLAC at 16 kHz, the rate at which every judge
listens; tests/judge_voice.py reads it. Engines run at the same time in processes of their own, so that their kernels
are compiled in parallel. Sentence n has speaker n modulo 4 and seed n in all variants but one:
- bf16, fp8, fp8-cache (keys and values in eight bits too): all sentences at once, so that products of fp8 mostly have
  more than 16 rows, and eight bits on both sides.
- fp8-few: 8 at once, for which a predictor opens with 16 positions: only the weights have eight bits, except in
  prompts.
- bf16-reseeded: other seeds, to show how far apart two readings are that differ in nothing else.
With `--device cpu --dtype float32` it runs without a GPU; inputs are then never rounded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile as sf
import soxr

import sonant
from sonant import Engine, EngineConfig, Speech
from sonant.config import KVCacheType, Quantization

SENTENCES = Path(__file__).with_name("held_out.txt")
RATE_HZ = 16_000
INDEX = "index.json"
POSITIONS = 256  # in the cache for each row: a prompt and twelve seconds of speech


@dataclass(frozen=True)
class Variant:
    quantize: Quantization | None = None
    cache: KVCacheType | None = None
    at_once: int = 200
    first_seed: int = 0


VARIANTS = {
    "bf16": Variant(),
    "bf16-reseeded": Variant(first_seed=1000),
    "fp8": Variant("fp8"),
    "fp8-few": Variant("fp8", at_once=8),
    "fp8-cache": Variant("fp8", "fp8"),
}


def say_all(engine: Engine, texts: list[str], variant: Variant, most: int) -> Iterator[Speech]:
    flying: deque[sonant.SpeechStream] = deque()
    for n, text in enumerate(texts):
        voice = engine.voices[n % len(engine.voices)]
        flying.append(engine.stream(text, voice=voice, seed=variant.first_seed + n, live=False))
        if len(flying) == min(variant.at_once, most):
            yield flying.popleft().result()
    while flying:
        yield flying.popleft().result()


def flac(samples: npt.NDArray[np.float32], rate_hz: int) -> bytes:
    file = BytesIO()
    sound = soxr.resample(samples, rate_hz, RATE_HZ)
    sf.write(file, sound, RATE_HZ, format="FLAC", subtype="PCM_16", compression_level=1.0)
    return file.getvalue()


def index_of(texts: list[str], voices: tuple[str, ...], spoken: list[Speech]) -> list[dict[str, Any]]:
    """What each sound should say, and its codes."""
    return [
        {
            "name": f"{n:03d}.flac",
            "text": text,
            "voice": voices[n % len(voices)],
            "seed": speech.seed,
            "finish_reason": speech.finish_reason,
            "codes": np.asarray(speech.frames).tolist(),
        }
        for n, (text, speech) in enumerate(zip(texts, spoken, strict=True))
    ]


def write(path: Path, index: list[dict[str, Any]], sounds: Iterable[bytes]) -> None:
    """Write a tar that tests/judge_voice.py reads."""
    names = [said["name"] for said in index]
    with tarfile.open(path, "w") as tar:
        for name, data in (*zip(names, sounds, strict=True), (INDEX, json.dumps(index).encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, BytesIO(data))


def speak(args: argparse.Namespace, names: list[str]) -> None:
    """Speak the variants of one engine, one after the other."""
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()[: args.sentences]
    first, began_s = VARIANTS[names[0]], time.perf_counter()
    config = EngineConfig(
        max_rows=args.rows, kv_tokens=args.rows * POSITIONS, compile_workers=args.compile_workers,
        quantize=first.quantize, kv_cache_dtype=first.cache,
    )  # fmt: skip
    with sonant.load(device=args.device, dtype=args.dtype, config=config) as engine:
        ready_s = time.perf_counter() - began_s
        for name in names:
            began_s = time.perf_counter()
            spoken = list(say_all(engine, texts, VARIANTS[name], args.rows))
            took_s = time.perf_counter() - began_s
            path = args.out / f"{name}.tar"
            sounds = (flac(np.asarray(speech.samples, np.float32), speech.sample_rate) for speech in spoken)
            write(path, index_of(texts, engine.voices, spoken), sounds)
            ended = sum(speech.finish_reason == "stop" for speech in spoken)
            sound_s, size = sum(speech.duration_s for speech in spoken), path.stat().st_size
            print(
                f"{name}: ready after {ready_s:.1f} s, {len(spoken)} sentences ({ended} ended by themselves), "
                f"{sound_s:.0f} s of sound in {took_s:.1f} s, {size / 2**20:.1f} MiB",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rows", type=int, default=200, help="that the engine has")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compile-workers", type=int, default=5, help="of each engine")
    parser.add_argument("--alone", action="store_true", help="in this process: all variants have the same engine")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.variants.split(",")
    if args.alone:
        return speak(args, names)
    groups: dict[tuple[str | None, str | None], list[str]] = {}
    for name in names:
        groups.setdefault((VARIANTS[name].quantize, VARIANTS[name].cache), []).append(name)
    # An option that is given twice has its last value.
    commands = [[sys.executable, *sys.argv, "--alone", "--variants", ",".join(group)] for group in groups.values()]
    running = [subprocess.Popen(command) for command in commands]
    codes = [process.wait() for process in running]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
