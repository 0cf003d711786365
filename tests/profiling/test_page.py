"""The page of a report in a real browser: it draws, zooms, and reports no error."""

from __future__ import annotations

from pathlib import Path

from profiling.plays import WASTE, start_up, steps
from profiling.scripted import Machine, write_kineto
from serving.browser import Browser
from sonant.profiling.analysis import analyze
from sonant.profiling.page import write_page
from sonant.profiling.read import read_trace
from sonant.profiling.report import make_report


def test_the_page_draws_and_zooms(tmp_path: Path, browser: Browser) -> None:
    machine = steps(start_up(Machine()), wastes=[waste for waste, _, _ in WASTE.values()])
    analysis = analyze(read_trace(write_kineto(machine, tmp_path / "trace.json")))
    write_page(analysis, make_report(analysis, "trace.json"), tmp_path / "page.html")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.goto((tmp_path / "page.html").as_uri())
    assert "the step thread does something else" in page.inner_text("#findings")
    assert "matrix product" in page.inner_text("#works") and "start-up" in page.inner_text("#phases")
    drawn = "document.getElementById('timeline').toDataURL()"
    before = page.evaluate(drawn)
    page.click("#in")
    after = page.evaluate(drawn)
    assert before != after
    page.click("#all")
    assert page.evaluate(drawn) == before
    canvas = page.locator("#timeline")
    canvas.hover(position={"x": 100, "y": 30})
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(50)
    assert page.evaluate(drawn) != before
    page.close()
    assert errors == [] and len(asked) == 1
