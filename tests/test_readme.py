"""Everything that the README tells a newcomer to run, runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import soundfile as sf

from clips import reference_clip
from sonant.bench.engine import breakdown, device_clock
from sonant.cli.main import main
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHELL = "".join(re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)).splitlines()
# Random weights end an utterance by chance; at this gain after a second or two instead of twenty.
EOS_GAIN = 4.0
TORCH_CPU = "https://download.pytorch.org/whl/cpu"


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SONANT_MODEL", raising=False)
    return tmp_path


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_python_runs_as_printed(newcomer: Path, block: str) -> None:
    write_checkpoint(newcomer / "base-model", kind="base", eos_gain=EOS_GAIN, code_groups=4)
    sf.write(newcomer / "ref.wav", *reference_clip())
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})


@pytest.mark.heavy
def test_commands_run_as_printed(newcomer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    briefly = partial(write_checkpoint, eos_gain=EOS_GAIN, code_groups=4)
    monkeypatch.setattr("sonant.models.qwen3_tts.synthetic.write_checkpoint", briefly)
    monkeypatch.setattr(device_clock, "_BATCH_MS", 1.0)  # the benchmark's figures need not be precise here
    monkeypatch.setattr(breakdown, "_WALL_ROUNDS", 1)
    monkeypatch.setattr(breakdown, "_EAGER_BATCHES", 1)
    commands = [line for line in SHELL if "sonant" in line]
    assert len(commands) >= 10
    for line in commands:
        giver, _, command = line.rpartition(" | ")
        if giver:
            piped = subprocess.run(giver, shell=True, capture_output=True, check=True).stdout
            monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(piped)))
        program, *args = shlex.split(command)
        assert program == "sonant"
        assert main(args) == 0, line
    for line in commands:
        for name in re.findall(r"-o (\S+)", line):
            assert sf.info(str(newcomer / name)).duration > 0


def test_the_rest_is_make_targets_and_the_environment_they_make() -> None:
    others = [line for line in SHELL if "sonant" not in line]
    assert others[:2] == ['make say TEXT="Hello."', "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert targets is not None
    for target in re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE):
        assert target in targets[1].split()
    assert others[2:] == [". .venv/bin/activate"]


@pytest.mark.parametrize("torch", ["", "cpu"])
def test_make_says_how_to_get_torch_without_cuda_before_it_installs(tmp_path: Path, torch: str) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    command = ["make", "--dry-run", "-f", str(ROOT / "Makefile"), "say", f"TORCH={torch}"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    before, _, _ = shown.partition("--editable")
    if torch:
        assert f"--index-url {TORCH_CPU} torch" in before and TORCH_CPU in README
    else:
        assert "make say TORCH=cpu" in before and TORCH_CPU not in shown


def test_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
