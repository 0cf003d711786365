"""What a request to VoxCPM2 may set, by the names of the official package. Defaults are its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonant.models.speech_spec import StagedNumber
from sonant.sampling import Knob, Value

FLOW_STEPS = (4, 6, 10, 20)
"""Numbers of flow steps that have graphs of their own."""

USUAL_STEPS = 10

KNOBS = (
    Knob(name="cfg_value", default=2.0, low=0.0, high=10.0, help="how closely speech follows text and voice"),
    Knob(name="inference_timesteps", default=USUAL_STEPS, choices=FLOW_STEPS, help="flow steps from noise to a patch"),
    Knob(name="temperature", default=1.0, low=0.0, high=2.0, help="how much noise a patch begins with"),
    Knob(name="min_len", default=2, low=0, high=2**20, help="speech has at least this many patches and two more"),
    Knob(name="retry_badcase", default=True, help="for files: repeat an utterance that is far too long for its text"),
    Knob(name="reference", default=True, help="false: a clip with known words is continued, but no reference"),
)

_STAGED = ("min_len", "cfg_value", "temperature")
STAGED_NUMBERS = (
    StagedNumber("seed", shape=(2,)),
    StagedNumber("frame_limit", low=1),
    *(StagedNumber.of(knob) for name in _STAGED for knob in KNOBS if knob.name == name),
)


def staged_values(values: Mapping[str, Value]) -> dict[str, Any]:
    """The staged numbers that sampling decides, from checked values of all knobs."""
    return {name: values[name] for name in _STAGED}
