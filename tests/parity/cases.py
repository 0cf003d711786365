"""The cases that the golden files hold, as requests to our engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sonant.sampling import Sampling

ENGLISH = "hello the world and speech, 1 2 3."
MIXED = "你好，the quick brown fox."
REFERENCE_TEXT = "the user and the world"
GREEDY = Sampling.greedy()


@dataclass(frozen=True)
class Case:
    name: str
    checkpoint: str
    text: str
    voice: str | None = None  # for "base": "timbre" or "in_context"
    options: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling = GREEDY


CASES = (
    Case("cv_nonstream", "custom", ENGLISH, "Ryan", {"language": "English"}),
    Case("cv_stream_text", "custom", ENGLISH, "Ryan", {"language": "English", "streaming_text": True}),
    Case("cv_instruct", "custom", ENGLISH, "Vivian", {"instruct": "speak like the user"}),
    Case("cv_dialect", "custom", MIXED, "Eric", {"language": "Chinese"}),
    Case("cv_norep", "custom", ENGLISH, "Ryan", {"language": "English"}, Sampling(greedy=True, repetition_penalty=1.0)),
    Case(
        "cv_strongrep",
        "custom",
        ENGLISH,
        "Ryan",
        {"language": "English", "streaming_text": True},
        Sampling(greedy=True, repetition_penalty=1.5),
    ),
    Case("vd_nonstream", "design", ENGLISH, None, {"language": "English", "instruct": "a warm user voice"}),
    Case("vd_noinstruct", "design", MIXED, None, {"instruct": ""}),
    Case("vc_xvec", "base", ENGLISH, "timbre", {"language": "English"}),
    Case("vc_icl", "base", ENGLISH, "in_context", {"language": "English"}),
    Case("vc_icl_nonstream", "base", ENGLISH, "in_context", {"streaming_text": False}),
    Case("vc_icl_longtext", "base", ENGLISH * 3, "in_context", {"language": "English"}),
)
MAX_FRAMES = 39  # the official runs drew at most 40 codes, the last of which never becomes a frame
