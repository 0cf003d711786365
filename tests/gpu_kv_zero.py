"""KV-Zero's table for Higgs Audio V2, over HTTP: English, Spanish and Chinese, 1, 4, 8 and 16 users, 270 requests.

    python tests/gpu_kv_zero.py --folder /tmp/higgs [--out kv_zero.json]
    python tests/gpu_kv_zero.py --folder tiny --device cpu --scale 0.1 --max-frames 10      # to try it

Not a test that pytest collects: it needs a large GPU, a checkpoint of full size (`sonant random-model --size 3b`) and
about two minutes. It needs no internet, and no package beyond the extras `serve` and `bench` without matplotlib.

`sonant serve` runs in a process of its own with as many rows as the largest number of users, and `sonant.bench`'s
client loads it. Sound is PCM, streamed. Every request has a new text, so that only the opening of its prompt is found
in the KV cache. Random weights never stop, so a request is cut after --max-frames frames.

A token is a decode step of a request, as KV-Zero counts it too: 25 of them are a second of sound. The time to the first
token, and from one to the next, is the engine's own, from differences of /metrics: means are exact, and quantiles as
fine as the buckets. First sound, RTF and gaps are the client's, at the socket; `RTF served` is the server's mean.
Warm-ups, two before each line, are in none of the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from serving.process import server_processes
from sonant.bench.client.load import Load
from sonant.bench.client.load_level import LoadLevel, Spread
from sonant.bench.client.prompts import LANGUAGES, Prompt, built_in
from sonant.bench.client.sweep import Sweep
from sonant.bench.client.target import Target
from sonant.bench.client.worker_pool import WorkerPool
from sonant.bench.report.table import remarks
from sonant.cli.bench.facts import machine_facts
from sonant.text_table import grid

REQUESTS = {1: 10, 4: 20, 8: 24, 16: 36}  # for each language, by users
WARMUPS = 2
READY_S = 300.0
PUBLISHED = {  # figures of KV-Zero, Boson's server, on an H100, as published by its authors
    "engine's first token, ms": 15.1,
    "tokens a second, 1 user": 99.3,
    "ms a token, 1 user": 10.0,
    "RTF, 1 user": 0.27,
    "x real time, 16 users": 35.0,
}
COLUMNS = (
    "language", "users", "requests", "errors", "first token ms", "p50", "p99", "first sound ms p50", "p99", "tokens/s",
    "ms a token", "p50", "p99", "RTF p50", "p99", "RTF served", "x real time", "gaps",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of the table. None: the server did not report it, or no request succeeded."""

    language: str
    users: int
    requests: int
    errors: int
    first_token: Mapping[str, float] | None  # mean, p50 and p99, in seconds
    first_sound_s: Spread | None
    tokens_per_s: float | None  # of all users, from the first request to the end of the last
    token: Mapping[str, float] | None  # like `first_token`
    rtf: Spread | None
    rtf_served: float | None
    x_real_time: float
    gaps: int | None

    @classmethod
    def of(cls, language: str, level: LoadLevel) -> Line:
        told, summary, users = level.server_metrics or {}, level.summary, level.load.concurrency
        rows = told.get("sonant_step_rows")
        assert users is not None
        return cls(
            language=language,
            users=users,
            requests=summary.requests,
            errors=summary.requests - summary.ok,
            first_token=told.get("sonant_first_step_seconds"),
            first_sound_s=summary.ttfp_s,
            tokens_per_s=rows["count"] * rows["mean"] / level.wall_s if rows else None,
            token=told.get("sonant_time_per_step_seconds"),
            rtf=summary.rtf,
            rtf_served=told.get("sonant_rtf_ratio", {}).get("mean"),
            x_real_time=summary.audio_s_per_s,
            gaps=summary.underruns,
        )

    def cells(self) -> tuple[str, ...]:
        sound, rtf = self.first_sound_s, self.rtf
        return (
            self.language,
            *map(str, (self.users, self.requests, self.errors)),
            *_told_ms(self.first_token, 1),
            *((f"{1e3 * sound.p50:.1f}", f"{1e3 * sound.p99:.1f}") if sound else ("-", "-")),
            _cell(self.tokens_per_s, 1),
            *_told_ms(self.token, 2),
            *((f"{rtf.p50:.3f}", f"{rtf.p99:.3f}") if rtf else ("-", "-")),
            _cell(self.rtf_served, 3),
            f"{self.x_real_time:.1f}",
            "-" if self.gaps is None else str(self.gaps),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="a checkpoint that `sonant serve` takes")
    parser.add_argument("--max-frames", type=int, default=125, help="of each request; 0: as the model stops (125)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests (1: 270 in all)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the figures as JSON, with all that the server told")
    args = parser.parse_args()
    requests = {users: max(1, round(args.scale * count)) for users, count in REQUESTS.items()}
    rows = str(max(requests))
    options = ("--device", args.device, "--max-rows", rows, "--warm-rows", rows)
    found: list[tuple[Line, LoadLevel]] = []
    with server_processes(READY_S, sys.stderr) as run:
        _, url = run(args.folder, *options)
        target = Target(url, extra_body={"max_frames": args.max_frames or None})
        for language in LANGUAGES:
            for level in levels(target, language, requests):
                found.append((Line.of(language, level), level))
                print(*found[-1][0].cells(), flush=True)
    lines = [line for line, _ in found]
    print("\n" + grid([COLUMNS, *(line.cells() for line in lines)], words_left=True))
    for line, level in found:
        for remark in remarks(replace(level, server_metrics=None)):
            print(f"{line.language}, {remark}")
    print("\n".join(["", *beside_published(lines)]))
    if args.out:
        report = {"facts": machine_facts(("httptools", "uvloop")), "max_frames": args.max_frames, "kv_zero": PUBLISHED}
        report["lines"] = [asdict(line) | {"wall_s": at.wall_s, "server": at.server_metrics} for line, at in found]
        args.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if sum(line.errors for line in lines) else 0


def levels(target: Target, language: str, requests: Mapping[int, int]) -> Iterator[LoadLevel]:
    """A load level for each number of users, each with texts of its own."""
    prompts = texts(language)
    assert sum(requests.values()) + WARMUPS * len(requests) <= len(prompts), "a text would be said twice; lower --scale"
    first, loads = 0, []
    for users, count in requests.items():
        loads.append(Load(count, concurrency=users, first=first))
        first += count + WARMUPS
    with WorkerPool(target, prompts) as pool:
        yield from Sweep(target, pool, WARMUPS).levels(loads)


def texts(language: str) -> list[Prompt]:
    """Short and medium prompts in turn, each after a short one; all pairs are different."""
    leads, prompts = built_in([language], ["short"]), built_in([language], ["short", "medium"])
    space = "" if language == "chinese" else " "
    return [
        Prompt(f"{prompt.name}-{turn}", leads[(n // 2 + turn) % len(leads)].text + space + prompt.text, language)
        for turn in range(1, len(leads))
        for n, prompt in enumerate(prompts)
    ]


def beside_published(lines: list[Line]) -> list[str]:
    """KV-Zero's figures and ours, which are means over the three languages."""
    one, sixteen = ([line for line in lines if line.users == users] for users in (1, max(REQUESTS)))
    ours = (
        [1e3 * line.first_token["mean"] for line in one if line.first_token],
        [line.tokens_per_s for line in one if line.tokens_per_s is not None],
        [1e3 * line.token["mean"] for line in one if line.token],
        [line.rtf.p50 for line in one if line.rtf],
        [line.x_real_time for line in sixteen],
    )
    table = [
        (name, f"{theirs:g}", _cell(sum(own) / len(own) if own else None, 3))
        for (name, theirs), own in zip(PUBLISHED.items(), ours, strict=True)
    ]
    total, failed = sum(line.requests for line in lines), sum(line.errors for line in lines)
    return [f"{total} requests, {failed} errors", grid([("", "KV-Zero, H100", "here"), *table], words_left=True)]


def _told_ms(told: Mapping[str, Any] | None, digits: int) -> tuple[str, ...]:
    names = ("mean", "p50", "p99")
    return tuple(f"{1e3 * told[name]:.{digits}f}" for name in names) if told else ("-",) * len(names)


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
