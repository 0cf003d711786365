"""One list of options, four places to set them: default < config file < environment < command line.

The list is the fields of the option classes. A field `max_rows` is `max_rows` in the file, SONANT_MAX_ROWS in the
environment and --max-rows on the command line. Values are read by the field's type, and an error names the place that
the wrong value came from.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sonant import strict
from sonant.errors import ConfigError

PREFIX = "SONANT_"
CONFIG_VARIABLE = "SONANT_CONFIG"  # names the config file


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
        """Read a value as people type it; several are separated by commas or given as a list."""
        if not self.repeats:
            assert isinstance(text, str)
            return _from_text(self.kind, text, where)
        items = text if isinstance(text, list) else [item.strip() for item in text.split(",") if item.strip()]
        return tuple(_from_text(get_args(self.kind)[0], item, where) for item in items)


def settings_of(*owners: type) -> list[Setting]:
    found = []
    for owner in owners:
        hints = get_type_hints(owner)
        for f in fields(owner):
            flag = f.metadata.get("flag") or f.name.replace("_", "-")
            found.append(Setting(owner, f.name, _without_none(hints[f.name]), f.default, f.metadata["help"], flag))
    return found


def add_settings(parser: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    for s in settings:
        default = ",".join(map(str, s.default)) if s.repeats else s.default
        shown = f"default: {default}; " if default not in (None, "") else ""
        more = "; may be repeated" if s.repeats else ""
        parser.add_argument(
            f"--{s.flag}",
            dest=s.name,
            metavar="FILE" if s.name.endswith("_file") else _metavar(s.kind),
            action="append" if s.repeats else "store",
            help=f"{s.help}{more} ({shown}{s.variable})".replace("%", "%%"),
        )


def gather(
    settings: Iterable[Setting], args: argparse.Namespace | None, environment: Mapping[str, str], file: Path | None
) -> dict[type, dict[str, Any]]:
    """The values that were set, for each owner; the others are left to their defaults."""
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
            found[s.owner][s.name] = strict.convert(s.kind, in_file[s.name], f"{file}: {s.name}", error=ConfigError)
    return found


def misspelt(settings: Iterable[Setting], variables: Iterable[str]) -> list[str]:
    """Warnings of variables with our prefix that resemble options. No errors, since others may use the prefix too."""
    known = [s.variable for s in settings]
    strange = [name for name in variables if name.startswith(PREFIX) and name not in known]
    hints = {name: strict.did_you_mean(name, known) for name in sorted(strange)}
    return [f"{name} is not an option{hint}" for name, hint in hints.items() if hint]


def _read_file(file: Path, settings: list[Setting]) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"the config file {file} cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"the config file {file} is not valid TOML: {e}") from None
    strict.refuse_unknown(values, [s.name for s in settings], str(file), ConfigError, noun="option")
    return values


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
    if kind not in (int, float):
        return strict.convert(kind, text, where, error=ConfigError)
    try:
        number = kind(text)
    except ValueError:
        raise ConfigError(f"{where} must be {strict.named(kind)}, not {text!r}") from None
    return strict.convert(kind, number, where, error=ConfigError)
