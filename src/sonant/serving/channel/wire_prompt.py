"""Prompts and arrays as messages carry them: arrays by type, shape and bytes, layouts field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sonant.errors import BadRequest
from sonant.models.prompt import Prompt
from sonant.serving.channel.messages import Array, WirePrompt

_DTYPES = {name: np.dtype(name) for name in ("int32", "int64", "uint32", "float32", "float64", "bool", "uint8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}  # numpy builds a name anew each time
_AS_THEY_ARE = frozenset({bool, int, float, str, type(None)})


def to_wire(prompt: Prompt) -> WirePrompt:
    layout: Any = prompt.payload  # a dataclass; `dataclasses.fields` would take longer than all the rest
    payload = _values({name: getattr(layout, name) for name in layout.__dataclass_fields__})
    return WirePrompt(
        prompt.length,
        pack_array(prompt.keys),
        _values(prompt.staged),
        prompt.max_frames,
        payload,
        prompt.variant,
        prompt.bad_from,
        [_values(values) for values in prompt.retries],
    )


def from_wire(wire: WirePrompt, layout: type) -> Prompt:
    """Raises `BadRequest` if it is no prompt at all; whether it fits the model is for the prompter to check."""
    try:
        payload = layout(**_plain_values(wire.payload))
    except TypeError as e:
        raise BadRequest(f"the prompt's layout has other fields than this model's: {e}") from None
    return Prompt(
        length=wire.length,
        keys=unpack_array(wire.keys),
        staged=_plain_values(wire.staged),
        max_frames=wire.max_frames,
        payload=payload,
        variant=wire.variant,
        bad_from=wire.bad_from,
        retries=tuple(_plain_values(values) for values in wire.retries),
    )


def pack_array(array: npt.NDArray[Any]) -> Array:
    return Array(_NAMES.get(array.dtype) or array.dtype.name, array.shape, array.tobytes())


def unpack_array(array: Array) -> npt.NDArray[Any]:
    """A copy, since torch complains of memory that cannot be written, such as a message's."""
    dtype = _DTYPES.get(array.dtype)
    if dtype is None or min(array.shape, default=0) < 0:
        raise BadRequest(f"an array of {array.dtype[:20]} {array.shape} is none that is sent here")
    if math.prod(array.shape) * dtype.itemsize != len(array.data):
        raise BadRequest(f"an array of {array.shape} {array.dtype} came with {len(array.data):,} bytes")
    return np.frombuffer(array.data, dtype).reshape(array.shape).copy()


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if type(value) in _AS_THEY_ARE else _value(value) for name, value in values.items()}


def _value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return pack_array(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if type(value) in _AS_THEY_ARE else _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Array):
        return unpack_array(value)
    return tuple(value) if isinstance(value, list) else value
