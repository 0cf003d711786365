"""Says what is wrong with a body in plain words: a client's author knows neither our classes nor the validator's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

_SHOWN_CHARS = 100  # of a field's name, which a client may have made up
_PLACES = ("body", "query", "path")
_KINDS = ("str", "int", "float", "bool", "constrained-str", "constrained-int", "VoiceId", "[key]")
_WHOLE, _NUMBER, _OBJECT, _BOOL = "a whole number", "a number", "an object", "true or false"
# What was expected, by the validator's type of error; those of one field are joined by "or".
_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "list_type": "a list",
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
}
_SAID: Mapping[str, str] = {
    "missing": "is missing",
    "extra_forbidden": "no field has that name",
    "int_parsing_size": "is a number of far too many digits",
    "string_unicode": "is not valid Unicode",
    "string_too_long": "may have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "may have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be over {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
}


def first_mistake(error: ValidationError | RequestValidationError) -> tuple[str, str | None]:
    """Return the first thing that is wrong with a body or a message, and where."""
    found = error.errors()
    first = found[0]
    if first["loc"] == ("body",) and first["type"] in ("missing", "model_attributes_type"):
        return "the body must be a JSON object, sent with content-type: application/json", None
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON: {first['ctx']['error']} at character {first['loc'][-1]}", None
    field = _parts(first)[:1]
    of_field = [(_parts(e), e) for e in found if _parts(e)[:1] == field]
    depth = max(len(parts) for parts, _ in of_field)
    # If a field may have several types, the deepest error is about the type that was meant.
    where = next(parts for parts, _ in of_field if len(parts) == depth)
    shown = ".".join(map(str, where))[:_SHOWN_CHARS]
    return f"{shown or 'the body'}: {_said([e for parts, e in of_field if parts == where])}", shown or None


def _parts(mistake: Any) -> tuple[str | int, ...]:
    """The path to the value as the client wrote it, without the validator's names for types of values."""
    parts = [part for n, part in enumerate(mistake["loc"]) if n > 0 or part not in _PLACES]
    named = mistake["type"] in ("extra_forbidden", "missing")
    last = len(parts) - 1
    return tuple(p for n, p in enumerate(parts) if n == 0 or (named and n == last) or not _is_kind(p))


def _is_kind(part: str | int) -> bool:
    if not isinstance(part, str):
        return False
    return part in _KINDS or part.startswith("function-")


def _said(mistakes: list[Any]) -> str:
    expected = list(dict.fromkeys(_EXPECTED[m["type"]] for m in mistakes if m["type"] in _EXPECTED))
    first = mistakes[0]
    if first["type"] in _EXPECTED:
        return f"must be {' or '.join(expected)}"
    context = first.get("ctx", {})
    if first["type"] == "literal_error":
        return f"must be {context['expected'].replace('True', 'true').replace('False', 'false')}"
    if first["type"] == "value_error":
        reason = str(context.get("error", ""))
        return "must be a file" if "UploadFile" in reason else reason
    said = _SAID.get(first["type"], "is not what this field takes").format(**context)
    return said.removesuffix("s") if " 1 " in said else said
