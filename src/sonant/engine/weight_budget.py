"""How much of a GPU's memory weights may take, and which of a checkpoint's stay: decided before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sonant.byte_size import parse_size
from sonant.config import EngineConfig
from sonant.engine.room import free_bytes, row_bytes
from sonant.engine.weight_plan import WeightPlan, plan_weights
from sonant.errors import ConfigError
from sonant.kernels.host_weights import can_page
from sonant.models.registry import load_model
from sonant.models.spec import ModelSpec

_BESIDE_BYTES = 1 << 30  # for work memory of graphs and libraries, and a voice being encoded
_USUAL_ROWS = 8  # for which a cache gets room if nothing was configured


@dataclass(frozen=True)
class WeightBudget:
    config: EngineConfig  # with the budget in bytes, so that other processes make the same plan
    plan: WeightPlan | None  # None: all stays

    @classmethod
    def of(
        cls, folder: Path, config: EngineConfig, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype]
    ) -> WeightBudget:
        """Reads config files and weight headers only."""
        sketch = load_model(folder, config, torch.device("meta"), *dtypes)
        budget = budget_bytes(config, sketch.spec, device)
        if budget is None:
            return cls(replace(config, gpu_weights=None), None)
        plan = plan_weights(sketch.weights(), budget)
        if plan is not None and not can_page(device):
            raise ConfigError("gpu_weights needs triton on a GPU: install it, or leave gpu_weights out")
        return cls(replace(config, gpu_weights=None if plan is None else str(budget)), plan)


def budget_bytes(config: EngineConfig, spec: ModelSpec, device: torch.device) -> int | None:
    """None: weights are not limited, as on a CPU, whose memory they are in anyway."""
    if config.gpu_weights is None:
        return None
    if config.gpu_weights != "auto":
        return parse_size(config.gpu_weights, "gpu_weights")
    if device.type != "cuda":
        return None
    return max(0, free_bytes(device, config.gpu_share) - _BESIDE_BYTES - cache_bytes(config, spec))


def cache_bytes(config: EngineConfig, spec: ModelSpec) -> int:
    """What was configured, or enough for a few requests of half the greatest length."""
    rows = config.max_rows or _USUAL_ROWS
    tokens = config.kv_tokens or rows * config.max_positions // 2
    return tokens * spec.kv_token_bytes + rows * row_bytes(spec)
