"""What belongs beside every figure: the machine, the versions, and the command that made it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sonant.cli.machine import this_machine
from sonant.cli.package_version import version_of


def machine_facts(packages: Sequence[str] = (), *, secret: str | None = None) -> dict[str, Any]:
    """The facts, with the versions of `packages` too; `secret` is left out of the command."""
    facts = asdict(this_machine())
    facts.pop("kernels")
    facts["packages"] |= {name: version_of(name) for name in packages}
    return facts | {"command": [a for a in sys.argv[1:] if not (secret and secret in a)]}
