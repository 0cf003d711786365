"""What an operator can set about replicas. Without any of it there is one engine, and no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sonant.config import option
from sonant.errors import ConfigError

LOCAL = "local"
Route = Literal["load", "voice"]


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    ray: str | None = option(
        None, "run on Ray Serve; local: start Ray on this machine; auto: join the Ray that runs here; or its HOST:PORT"
    )
    replicas: int | None = option(None, "number of engines, each with its own GPU; they run on Ray")
    max_replicas: int | None = option(
        None, "most replicas to scale up to while listeners would wait too long; by default the number is fixed"
    )
    replica_gpus: float | None = option(
        None, "GPUs of each replica; by default 1 if Ray has any and --device allows it"
    )
    replica_cpus: float = option(1.0, "cores that Ray reserves for each replica")
    route: Route = option(
        "load",
        "where requests go; load: to the replica with the fewest of them; voice: to the one that had the same voice "
        "last, if it has room",
    )

    def __post_init__(self) -> None:
        for name in ("replicas", "max_replicas"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.max_replicas is not None and self.max_replicas < self.least:
            raise ConfigError(f"max_replicas, {self.max_replicas}, must not be below replicas, {self.least}")
        if (self.replica_gpus or 0) < 0 or self.replica_cpus < 0:
            raise ConfigError("replica_gpus and replica_cpus must not be below 0")

    @property
    def wanted(self) -> bool:
        """Whether Ray is to be used at all."""
        return self.ray is not None or self.replicas is not None or self.max_replicas is not None

    @property
    def address(self) -> str:
        return self.ray or LOCAL

    @property
    def least(self) -> int:
        return self.replicas or 1
