"""Checks that a prompt laid out by another process fits a model: what all families check, and how.

An id past a table's end makes the device read somebody else's memory, and a NaN among the numbers leads to such an id.
A broken message must therefore be found here, in microseconds, and not by a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sonant.errors import BadRequest
from sonant.models.prompt import Prompt, Prompter
from sonant.models.speech_spec import StagedNumber

INT32, FLOAT32, BOOL = np.dtype(np.int32), np.dtype(np.float32), np.dtype(bool)
_WHOLE, _NUMBER = (int, np.integer), (int, float, np.integer, np.floating)


def misfit(what: str) -> BadRequest:
    return BadRequest(f"this prompt is not of this model: {what}; lay it out with a prompter of the same checkpoint")


def check_array(name: str, found: object, dtype: np.dtype[Any], *shape: int | None) -> None:
    """Raise unless `found` is an array of this dtype and shape, where None is any size."""
    if isinstance(found, np.ndarray):
        fits = found.dtype == dtype and len(found.shape) == len(shape)
        for size, there in zip(shape, found.shape, strict=False):
            fits = fits and (size is None or size == there)
        if fits:
            return
    expected = f"[{', '.join('n' if size is None else str(size) for size in shape)}] {dtype}"
    given = f"{list(found.shape)} {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
    raise misfit(f"{name} must be {expected}, not {given}")


def check_ids(name: str, ids: np.ndarray, least: int, count: int) -> None:
    """Raise unless all ids, which are int32, are at least `least` and below `count`."""
    # As unsigned numbers, differences below zero are larger than any allowed: one pass over the ids instead of two.
    if ids.size and np.maximum.reduce((ids - np.int32(least)).view(np.uint32), axis=None) >= count - least:
        raise misfit(f"{name} must be from {least} to {count - 1}, not from {ids.min()} to {ids.max()}")


def check_finite(name: str, numbers: np.ndarray) -> None:
    """Raise unless all numbers are finite; the largest and smallest tell, since both are NaN if any number is."""
    if numbers.size and not (np.isfinite(numbers.max()) and np.isfinite(numbers.min())):
        raise misfit(f"{name} must be finite numbers")


def check_whole(name: str, found: object, least: int = 0, most: int = 2**31 - 1) -> None:
    if type(found) is not int or not least <= found <= most:
        raise misfit(f"{name} must be a whole number from {least} to {most}, not {found!r:.60}")


def check_prompt(prompter: Prompter, prompt: Prompt, positions: int, key_width: int, **follows: int) -> None:
    """Check all but the payload itself, which has so many positions. `follows` are staged numbers that the rest of the
    prompt determines: with other values the host and the device would disagree."""
    spec = prompter.spec
    check_whole("max_frames", prompt.max_frames, least=1)
    if type(prompt.length) is not int or prompt.length != positions or positions < 1:
        raise misfit(f"its length is {prompt.length!r:.60}, but it has {positions} positions")
    check_array("keys", prompt.keys, INT32, positions, key_width)
    if type(prompt.variant) is not int or prompt.variant not in spec.variants:
        raise misfit(f"variant must be one of {', '.join(map(str, spec.variants))}, not {prompt.variant!r:.60}")
    if prompt.bad_from is not None:
        check_whole("bad_from", prompt.bad_from)
    known = spec.staged_by_name
    if not isinstance(prompt.staged, Mapping) or prompt.staged.keys() != known.keys():
        raise misfit(f"it stages {_names(prompt.staged)}, where the model has {_names(known)}")
    _check_numbers(prompt.staged, known)
    for name, value in follows.items():
        if prompt.staged[name] != value:
            raise misfit(f"it stages {name} {prompt.staged[name]!r:.60}, but has {value}")
    for retry in prompt.retries:
        if not isinstance(retry, Mapping) or not retry.keys() <= known.keys() - follows.keys():
            raise misfit(f"a retry stages {_names(retry)}, and may not")
        _check_numbers(retry, known)


def _check_numbers(values: Mapping[str, Any], known: Mapping[str, StagedNumber]) -> None:
    for name, value in values.items():
        number = known[name]
        if number.shape:
            check_array(name, value, np.dtype(number.dtype), *number.shape)
            if number.dtype == "float32":
                check_finite(name, value)
        elif not isinstance(value, _WHOLE if number.dtype == "int32" else _NUMBER):
            raise misfit(f"{name} must be {number.dtype}, not {type(value).__name__}")
        elif not number.low <= value <= number.high:
            raise misfit(f"{name} must be from {number.low} to {number.high}, not {value!r:.60}")


def _names(values: object) -> str:
    return (", ".join(sorted(map(str, values))) or "nothing") if isinstance(values, Mapping) else repr(values)[:60]
