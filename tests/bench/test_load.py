"""How requests are spread over time and processes, and what they ask for."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from bench.scripted import Call, Script, ScriptedServer, scripted
from sonant.bench.client.driver import Driver
from sonant.bench.client.load import Load, shares
from sonant.bench.client.prompts import Prompt, Reference
from sonant.bench.client.sample import Sample
from sonant.bench.client.target import Address, Target
from sonant.errors import ConfigError

PROMPTS = [Prompt(f"p{i}", f"Text {i}.") for i in range(3)]


def drive(script: Script, load: Load, stop_after_s: float | None = None) -> tuple[list[Sample], ScriptedServer]:
    async def run() -> tuple[list[Sample], ScriptedServer]:
        async with scripted(script) as server:
            driver = Driver(Target(server.url), PROMPTS, timeout_s=5)
            await driver.resolve()
            if stop_after_s is not None:
                asyncio.get_running_loop().call_later(stop_after_s, driver.stop)
            await driver.run(load, shares(load, 1)[0], time.perf_counter())
            return driver.samples(), server

    return asyncio.run(run())


async def quick(call: Call) -> None:
    await call.paced([0.02])


def test_a_closed_loop_keeps_so_many_in_flight_and_no_more() -> None:
    samples, server = drive(quick, Load(12, concurrency=3))
    assert len(samples) == len(server.calls) == 12
    assert server.most_in_flight == 3
    assert sorted(s.prompt for s in samples) == sorted(4 * ["p0", "p1", "p2"])


def test_an_open_loop_does_not_wait_for_the_server() -> None:
    async def slow(call: Call) -> None:
        await call.paced([0.4])

    load = Load(20, rate=200, seed=1)
    samples, server = drive(slow, load)
    assert len(samples) == 20
    assert server.most_in_flight == 20  # all came while the first answer was being sent
    came = sorted(s.started_s - s.late_s for s in samples)
    due = load.arrivals_s()
    assert [t - came[0] for t in came] == pytest.approx([t - due[0] for t in due], abs=1e-6)
    assert all(s.late_s >= 0 for s in samples)


def test_arrivals_are_poisson_and_repeatable() -> None:
    load = Load(4000, rate=10, seed=3)
    due = load.arrivals_s()
    gaps = [b - a for a, b in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.05) and spread == pytest.approx(0.1, rel=0.1)
    assert due == load.arrivals_s() != Load(4000, rate=10, seed=4).arrivals_s()


def test_a_ramp_lets_listeners_in_one_by_one() -> None:
    samples, _ = drive(quick, Load(4, concurrency=4, ramp_s=0.4))
    starts = sorted(s.started_s for s in samples)
    assert [t - starts[0] for t in starts] == pytest.approx([0, 0.1, 0.2, 0.3], abs=0.05)


@pytest.mark.parametrize(
    "load", [Load(10, concurrency=4), Load(10, rate=5.0), Load(10, rate=5.0, first=7), Load(2, concurrency=9, first=3)]
)
@pytest.mark.parametrize("processes", [1, 3])
def test_shares_are_the_whole_and_nothing_twice(load: Load, processes: int) -> None:
    parts = shares(load, processes)
    assert sorted(i for part in parts for i in part.indices) == list(range(load.first, load.first + load.requests))
    starts = sum(len(part.starts_s) for part in parts)
    assert starts == (load.requests if load.rate else min(load.concurrency or 0, load.requests))
    assert all(part.indices and part.starts_s for part in parts)


def test_stopping_gives_what_had_ended() -> None:
    async def script(call: Call) -> None:
        await call.paced([0.01] if call.body["input"] == "Text 0." else [30.0])

    began = time.monotonic()
    samples, _ = drive(script, Load(30, concurrency=3), stop_after_s=0.3)
    assert time.monotonic() - began < 5
    assert {s.prompt for s in samples} == {"p0"}
    assert all(s.ok for s in samples)


def test_a_name_with_several_addresses_leads_to_the_one_that_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str:
        async with scripted(quick) as server:
            port = int(server.url.rsplit(":", 1)[1])

            async def both(*_: object, **__: object) -> list[tuple[object, ...]]:
                return [(10, 1, 6, "", ("::1", port, 0, 0)), (2, 1, 6, "", ("127.0.0.1", port))]

            loop = asyncio.get_running_loop()
            driver = Driver(Target(f"http://both:{port}"), PROMPTS)
            with monkeypatch.context() as patched:
                patched.setattr(loop, "getaddrinfo", both)
                await driver.resolve()
            return driver.host

    assert asyncio.run(run()) == "127.0.0.1"


def test_the_body_is_openais_with_extras(tmp_path: Path) -> None:
    (tmp_path / "clip.wav").write_bytes(b"RIFF")
    prompt = Prompt("p", "Hi.", reference=Reference(tmp_path / "clip.wav", "Words."))
    body = Target("http://h", voice="v", extra_body={"max_frames": 9, "stream": None}).body(prompt)
    assert body == {
        "model": "tts-1", "input": "Hi.", "voice": "v", "response_format": "pcm", "stream_format": "audio",
        "max_frames": 9, "ref_audio": "data:audio/wav;base64,UklGRg==", "ref_text": "Words.",
    }  # fmt: skip


def test_the_key_is_sent_and_never_told() -> None:
    target = Target("http://h", api_key="sesame")
    assert b"Authorization: Bearer sesame\r\n" in target.request(PROMPTS[0])
    assert "sesame" not in repr(target) and "sesame" not in str(target.describe())


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://a:8000", "http://a:8000"),
        ("a:8000/v1/", "http://a:8000"),
        ("https://a/tts/v1", "https://a/tts"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_addresses(url: str, root: str) -> None:
    assert Address.parse(url).root == root


@pytest.mark.parametrize(
    "url", ["ftp://a", "http://", "http://a:99999", "http://a:x", "http://a..b", f"http://{'a' * 64}.b"]
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        Address.parse(url)


@pytest.mark.parametrize(
    "options", [{}, {"concurrency": 1, "rate": 1.0}, {"rate": 0.0}, {"rate": float("inf")}, {"concurrency": 0}]
)
def test_loads_that_make_no_sense(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Load(1, **options)  # type: ignore[arg-type]
