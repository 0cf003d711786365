"""The alert rules are valid, ask only for what /metrics has, and fire when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from serving.conftest import Serve
from serving.test_metrics import scrape
from sonant.serving.observability.engine_metrics import GPU_FIGURES

yaml = pytest.importorskip("yaml")

RULES = files("sonant.serving.observability").joinpath("alerts/sonant.yml")
ROOT = Path(__file__).parents[2]
SUBJECTS = {  # subjects that need a rule, and a metric that it must name
    "paging": "sonant_weights_wait_seconds_total",
    "underruns": "sonant_underruns_total",
    "first sound": "sonant_ttfp_seconds_bucket",
    "queue": "sonant_requests_waiting",
    "restarts": "sonant_engine_restarts_total",
    "memory": "sonant_gpu_memory_used_bytes",
}


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def test_rules_are_whole(rules: list[dict[str, Any]]) -> None:
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names) and all(name.startswith("Sonant") for name in names)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
    for subject, metric in SUBJECTS.items():
        assert any(metric in rule["expr"] for rule in rules), subject


def test_rules_ask_only_for_what_there_is(rules: list[dict[str, Any]], serve: Serve) -> None:
    known = {s.name for f in scrape(serve("endless toy")).values() for s in f.samples}
    known |= {f"sonant_gpu_{name}" for name in GPU_FIGURES}
    asked = {name for rule in rules for name in re.findall(r"\b(?:sonant|process)_[a-z_]+", rule["expr"])}
    assert len(asked) > 10 and asked <= known, asked - known


def test_the_docs_name_the_file_and_every_rule(rules: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert "observability/alerts/sonant.yml" in page
    assert set(re.findall(r"`(Sonant[A-Z]\w+)`", page)) == {rule["alert"] for rule in rules}


def test_rules_come_when_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus (Debian: apt install prometheus)")
    (tmp_path / "sonant.yml").write_text(RULES.read_text("utf-8"), encoding="utf-8")
    tests = tmp_path / "test.yml"
    shutil.copy(Path(__file__).with_name("alert_rules_test.yml"), tests)
    for command in (["check", "rules", "sonant.yml"], ["test", "rules", "test.yml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
