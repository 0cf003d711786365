"""Loads published weights into modules: where tensors are stored, how their names map to ours, and how modules fill."""

from sonant.models.weights.folder import open_weights
from sonant.models.weights.host_memory import HostMemory
from sonant.models.weights.load import allocate, load_into, weight_bytes
from sonant.models.weights.naming import FUSED, Naming, rename_by, stored_names
from sonant.models.weights.pickled import PickledTensors
from sonant.models.weights.safetensors_file import SafetensorsFile
from sonant.models.weights.shards import ShardedSafetensors
from sonant.models.weights.source import StoredTensor, TensorSource

__all__ = [
    "FUSED",
    "HostMemory",
    "Naming",
    "PickledTensors",
    "SafetensorsFile",
    "ShardedSafetensors",
    "StoredTensor",
    "TensorSource",
    "allocate",
    "load_into",
    "open_weights",
    "rename_by",
    "stored_names",
    "weight_bytes",
]
