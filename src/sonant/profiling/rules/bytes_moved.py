"""Bytes that are set or moved on the device, without computing any sound."""

from __future__ import annotations

from collections.abc import Iterator

from sonant.profiling.analysis import Analysis
from sonant.profiling.finding import Finding, times
from sonant.profiling.kernels import Work
from sonant.profiling.rules.builders import of_events


def fills(analysis: Analysis) -> Iterator[Finding]:
    events = analysis.steady(Work.FILL)
    if len(events):
        lost = analysis.trace.device.duration[events]
        yield of_events(
            analysis,
            "fills",
            "memory is filled in every step",
            events,
            lost,
            "allocate once with torch.empty and write what is read; masks, not zeros, hide what was never written",
        )


def copies(analysis: Analysis) -> Iterator[Finding]:
    events = analysis.steady(Work.COPY, Work.CAST, Work.CAT)
    if len(events):
        lost = analysis.trace.device.duration[events]
        kinds = [(work, int(analysis.works.among([work], events).sum())) for work in (Work.COPY, Work.CAST, Work.CAT)]
        told = ", ".join(f"{times(count / analysis.count)} {work.value}" for work, count in kinds if count)
        yield of_events(
            analysis,
            "copies",
            f"tensors are copied, cast or joined in every step: {told}",
            events,
            lost,
            "write results where they are needed (out=, views of one buffer), keep one dtype and layout, "
            "prepare constants once",
        )
