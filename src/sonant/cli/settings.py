"""One list of options, four places to set them: default < config file < environment < command line.

The list is the fields of the option classes. A field `max_rows` is `max_rows` in the file, SONANT_MAX_ROWS in the
environment and --max-rows on the command line. Values are read by the field's type, and whatever is wrong is told
with the place it came from.
"""

from __future__ import annotations

import argparse
import difflib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sonant.errors import ConfigError

PREFIX = "SONANT_"


@dataclass(frozen=True)
class Setting:
    owner: type
    name: str
    kind: Any  # the type, without None
    default: Any
    help: str
    flag: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def repeats(self) -> bool:
        return get_origin(self.kind) is tuple

    def from_text(self, text: str | list[str], where: str) -> Any:
        """A value as people type it; of several, separated by commas or given as a list."""
        if not self.repeats:
            assert isinstance(text, str)
            return _from_text(self.kind, text, where)
        items = text if isinstance(text, list) else [item.strip() for item in text.split(",") if item.strip()]
        return tuple(_from_text(get_args(self.kind)[0], item, where) for item in items)

    def from_toml(self, value: object, where: str) -> Any:
        if not self.repeats:
            return _from_toml(self.kind, value, where)
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, not {value!r}")
        return tuple(_from_toml(get_args(self.kind)[0], item, where) for item in value)


def settings_of(*owners: type) -> list[Setting]:
    found = []
    for owner in owners:
        hints = get_type_hints(owner)
        for f in fields(owner):
            flag = f.metadata.get("flag") or f.name.replace("_", "-")
            found.append(Setting(owner, f.name, _without_none(hints[f.name]), f.default, f.metadata["help"], flag))
    return found


def add_arguments(parser: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    for s in settings:
        default = ",".join(map(str, s.default)) if s.repeats else s.default
        shown = f"default: {default}; " if default not in (None, "") else ""
        more = "; may be given again" if s.repeats else ""
        parser.add_argument(
            f"--{s.flag}",
            dest=s.name,
            metavar=_metavar(s.kind),
            action="append" if s.repeats else "store",
            help=f"{s.help}{more} ({shown}{s.variable})".replace("%", "%%"),
        )


def gather(
    settings: Iterable[Setting], args: argparse.Namespace, environment: Mapping[str, str], file: Path | None
) -> dict[type, dict[str, Any]]:
    """What was set, for each owner; what nobody set is left to its default."""
    settings = list(settings)
    in_file = {} if file is None else _read_file(file, settings)
    found: dict[type, dict[str, Any]] = {s.owner: {} for s in settings}
    for s in settings:
        given, variable = getattr(args, s.name, None), environment.get(s.variable, "")
        if given is not None:
            found[s.owner][s.name] = s.from_text(given, f"--{s.flag}")
        elif variable:
            found[s.owner][s.name] = s.from_text(variable, s.variable)
        elif s.name in in_file:
            found[s.owner][s.name] = s.from_toml(in_file[s.name], f"{file}: {s.name}")
    return found


def misspelt(settings: Iterable[Setting], variables: Iterable[str]) -> list[str]:
    """Variables of ours that set nothing but look as if they should; not an error, others may use the prefix too."""
    known = [s.variable for s in settings]
    strange = [name for name in variables if name.startswith(PREFIX) and name not in known]
    return [f"{name} is not an option{_nearest(name, known)}" for name in sorted(strange) if _nearest(name, known)]


def _read_file(file: Path, settings: list[Setting]) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"the config file {file} cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"the config file {file} is not valid TOML: {e}") from None
    known = [s.name for s in settings]
    for name in values:
        if name not in known:
            raise ConfigError(f"{file}: no option is called {name!r}{_nearest(name, known)}")
    return values


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (only,) = (k for k in get_args(kind) if k is not NoneType)
    return only


def _metavar(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return _metavar(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return {int: "N", float: "X", Path: "DIR"}.get(kind, "TEXT")


def _from_text(kind: Any, text: str, where: str) -> Any:
    if get_origin(kind) is Literal or kind is str:
        return _from_toml(kind, text, where)
    if kind is Path:
        return Path(text)
    parse: Callable[[str], Any] = int if kind is int else float
    try:
        return _from_toml(kind, parse(text), where)
    except ValueError:
        raise ConfigError(f"{where} must be {_named(kind)}, not {text!r}") from None


def _from_toml(kind: Any, value: object, where: str) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{where} must be one of {', '.join(get_args(kind))}, not {value!r}")
        return value
    accepted = {int: int, float: (int, float), str: str, Path: str}[kind]
    if isinstance(value, bool) or not isinstance(value, accepted) or (kind is float and not math.isfinite(value)):  # type: ignore[arg-type]
        raise ConfigError(f"{where} must be {_named(kind)}, not {value!r}")
    return kind(value)


def _named(kind: Any) -> str:
    return {int: "a whole number", float: "a number", Path: "a path"}.get(kind, "text")
