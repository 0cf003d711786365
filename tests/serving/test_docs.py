"""Everything that docs/serving.md tells an operator to run, runs, against a server as it describes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from serving.conftest import Serve
from sonant.cli.main import build_parser
from sonant.cli.serve import read_cluster, read_options
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    joined = "".join(blocks("sh")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


@pytest.fixture
def address(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return serve("brief").url.removeprefix("http://")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ "brief": random weights that babble for a second or two instead of twenty."""
    brief = tmp_path_factory.mktemp("brief") / "checkpoint"
    write_checkpoint(brief, kind="custom_voice", eos_gain=4.0, code_groups=4)
    return {"brief": brief}


@pytest.mark.parametrize("block", blocks("python"), ids=range(len(blocks("python"))))
def test_python_runs_as_printed(address: str, tmp_path: Path, block: str) -> None:
    exec(compile(block.replace("localhost:8000", address), "serving.md", "exec"), {"__name__": "__main__"})
    if "speech.pcm" in block:
        assert (tmp_path / "speech.pcm").stat().st_size > 0


def test_curl_runs_as_printed(address: str, tmp_path: Path) -> None:
    lines = [line for line in commands() if line.startswith("curl")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.replace("localhost:8000", address))
        answered = subprocess.run([*words, "-sS", "--fail"], capture_output=True, check=True).stdout
        if "-o" in words:
            assert (tmp_path / words[words.index("-o") + 1]).stat().st_size > 0
        else:
            assert json.loads(answered)["failed"] == 0


def test_commands_and_the_config_file_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = blocks("toml")
    (tmp_path / "sonant.toml").write_text(config)
    named = re.findall(r"(?:^|: )(sonant serve [^\n`]+)", "\n".join([*commands(), config]), re.MULTILINE)
    assert len(named) == 3
    for line, folder, replicas in zip(named, (None, "model", "model"), (None, 8, None), strict=True):
        args = build_parser().parse_args(shlex.split(line)[1:])
        model, options, _ = read_options(args)
        assert (model.model, options.port, read_cluster(args).replicas) == (folder, 8000, replicas)
    assert options.allow_url == ("media.example.com",)


def test_the_rest_is_the_installation() -> None:
    others = [line for line in commands() if not line.startswith(("curl", "sonant"))]
    assert others == ["make serve PORT=8000", "pip install '.[serve]'", "pip install '.[ray]'"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {"serve", "ray", "s3"} <= extras.keys()
    make = ["make", "--dry-run", "-C", str(ROOT), "serve", "PORT=8000"]
    shown = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    assert "bin/sonant serve" in shown and '--port "$PORT"' in shown
