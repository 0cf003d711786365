"""A planted slowdown is found, noise is not called a difference."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bench.samples import TARGET, failed, level, noisy_run, sample
from bench.scripted import Call, scripted
from sonant.bench.client.driver import Driver
from sonant.bench.client.load import Load, shares
from sonant.bench.client.load_level import LoadLevel
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Failure
from sonant.bench.client.target import Target
from sonant.bench.report import html
from sonant.bench.report.compare import Verdict, compare, table
from sonant.bench.report.results import Run, load
from sonant.cli.main import main
from sonant.errors import ConfigError


def verdicts(before: Run, after: Run) -> dict[str, Verdict]:
    return {change.metric: change.verdict for change in compare(before, after).changes}


@pytest.mark.parametrize("seed", range(5))
def test_five_percent_slower_is_found(seed: int) -> None:
    found = verdicts(noisy_run(seed), noisy_run(seed + 100, slow=1.05))
    assert {found[m] for m in ("TTFP", "E2EL", "RTF")} == {Verdict.WORSE}
    faster = verdicts(noisy_run(seed + 100, slow=1.05), noisy_run(seed))
    assert {faster[m] for m in ("TTFP", "E2EL", "RTF")} == {Verdict.BETTER}


@pytest.mark.parametrize("seed", range(10))
def test_the_same_server_twice_is_no_difference(seed: int) -> None:
    found = verdicts(noisy_run(seed), noisy_run(seed + 100))
    assert set(found.values()) <= {Verdict.SAME, Verdict.UNCLEAR}


def test_results_with_half_a_character_are_kept(tmp_path: Path) -> None:
    run = Run(TARGET, {}, [level([sample()])], {"gpu": "\udcff ü"}, 2, "now")
    run.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").notes == run.notes
    html.write(run, tmp_path / "run.html")
    assert "? ü" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_little_data_is_unclear_and_not_a_win() -> None:
    found = verdicts(noisy_run(1, requests=6), noisy_run(2, requests=6, slow=0.9))
    assert set(found.values()) == {Verdict.UNCLEAR}
    told = table(compare(noisy_run(1, requests=6), noisy_run(2, requests=6, slow=0.9)))
    assert told.splitlines()[-1].startswith("too few requests, or too much noise, to tell a regression over 3 %")


def test_a_difference_too_small_to_matter() -> None:
    found = verdicts(noisy_run(1, noise=0.001), noisy_run(2, noise=0.001, slow=1.01))
    assert found["TTFP"] is Verdict.SAME


def test_failures_and_gaps_count() -> None:
    good = [sample(f"p{i % 10}") for i in range(100)]
    gaps = [sample(f"p{i % 10}", gap_s=0.3 if i % 4 == 0 else 0.0) for i in range(100)]
    lost = [failed(Failure.CUT) if i % 5 == 0 else s for i, s in enumerate(good)]
    runs = [Run(TARGET, {}, [level(samples)], {}, 2, "now") for samples in (good, gaps, lost)]
    assert verdicts(runs[0], runs[1])["underrun rate"] is Verdict.WORSE
    assert verdicts(runs[0], runs[2])["failures"] is Verdict.WORSE
    assert verdicts(runs[0], runs[0])["failures"] is Verdict.SAME


@pytest.mark.parametrize("count", [1, 6, 32])
def test_a_server_that_answers_nobody_any_more_is_worse(count: int) -> None:
    before = Run(TARGET, {}, [level([sample(f"p{i}") for i in range(count)])], {}, 2, "now")
    after = Run(TARGET, {}, [level([failed(Failure.STATUS, 500)] * count)], {}, 2, "now")
    assert compare(before, after).regressed
    assert not compare(after, before).regressed and not compare(after, after).regressed


def test_other_prompts_are_compared_run_against_run() -> None:
    before, after = noisy_run(1), noisy_run(2)
    other = [sample(f"other{i}", audio_s=1 + i % 30) for i in range(128)]
    found = compare(before, Run(TARGET, {}, [level(other)], {}, 2, "now"))
    assert "the prompts differ" in table(found)
    assert not compare(before, after).remarks


def test_runs_without_a_common_load() -> None:
    with pytest.raises(ConfigError, match="no load in common"):
        compare(noisy_run(1), Run(TARGET, {}, [level([sample()], concurrency=9)], {}, 2, "now"))


def test_the_exit_code_is_for_ci(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, slow = (str(tmp_path / name) for name in ("a.json", "b.json", "slow.json"))
    noisy_run(1).save(Path(a))
    noisy_run(2).save(Path(b))
    noisy_run(3, slow=1.05).save(Path(slow))
    assert main(["bench", "compare", a, b]) == 0
    assert "no regression" in capsys.readouterr().out
    assert main(["bench", "compare", a, slow]) == 1
    assert "WORSE" in capsys.readouterr().out
    assert main(["bench", "compare", a, slow, "--threshold", "20"]) == 0
    assert main(["bench", "compare", a, "nowhere.json"]) == 2
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert main(["bench", "compare", a, str(tmp_path / "deep.json")]) == 2


def test_a_live_server_that_was_made_slower_is_found() -> None:
    def measure(first_s: float) -> Run:
        async def script(call: Call) -> None:
            await call.paced([first_s, first_s / 2])

        async def run() -> LoadLevel:
            async with scripted(script) as server:
                prompts = [Prompt(f"p{i}", f"Text {i}.") for i in range(16)]
                driver = Driver(Target(server.url), prompts)
                await driver.resolve()
                load = Load(64, concurrency=4)
                await driver.run(load, shares(load, 1)[0], time.perf_counter())
                return level(driver.samples())

        return Run(TARGET, {}, [asyncio.run(run())], {}, 2, "now")

    before, again, slower = measure(0.06), measure(0.06), measure(0.09)
    assert verdicts(before, slower)["TTFP"] is Verdict.WORSE
    assert not compare(before, again).regressed
