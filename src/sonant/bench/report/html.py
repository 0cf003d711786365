"""A run as one self-contained HTML file: no script, no link, the pictures inside."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path

from sonant.bench.report import plots
from sonant.bench.report.results import Run
from sonant.bench.report.table import run_table
from sonant.errors import ConfigError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 13px }
img { max-width: 100%; border: 1px solid #ddd; margin: 0.5rem 0 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } pre { background: #262626 } }
"""
_CAPTIONS = {
    "ttfp": "Time from sending a request to the first sound of its answer.",
    "rtf": "Time of a whole request by the length of its sound.",
    "continuity": "How long a listener must wait after the first chunk to hear no gap.",
    "timeline": "Single streams of the last level. Grey: waiting; blue: sound arrives; red: nothing left to play.",
}


def write(run: Run, path: Path) -> None:
    facts = {"made": run.made_at, **run.notes, "warm-ups before each level": run.warmups, "client": run.client}
    pictures = "".join(
        f'<h2>{html.escape(_CAPTIONS[name])}</h2><img alt="{name}" src="data:image/png;base64,{_encode(png)}">'
        for name, png in plots.draw(run).items()
    )
    title = f"Load test of {_text(run.target['base_url'])}"
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f"<pre>{_text(run_table(run))}</pre>{pictures}"
        f"<h2>Request and machine</h2><pre>{_text(json.dumps(dict(run.target), indent=1, ensure_ascii=False))}\n"
        f"{_text(json.dumps(facts, indent=1, ensure_ascii=False))}</pre></html>"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as e:
        raise ConfigError(f"the report cannot be written to {path}: {e.strerror}") from e


def _encode(png: bytes) -> str:
    return base64.b64encode(png).decode()


def _text(value: object) -> str:
    return html.escape(str(value))
